// Load, shrink and encode photos. Large photos are shrunk before drawing, to save memory.
const LARGEST = 2048, KEPT = 1600;  // pixels of the longer side: shown or sent, and stored
const SENT = 4e6, STORED = 1e6;     // bytes; larger files are shrunk before they are sent or stored
const SMALL = 160;     // pixels of the longer side of a thumbnail

// Show a photo (a Blob, a URL, or undefined if it comes later) in an image, while wanted() is true. Returns false if
// the browser cannot show it.
export async function loadPhoto(image, photo, wanted) {
  let address = photo;
  try {
    if (!photo) throw new Error("it comes later");
    if (photo instanceof Blob) address = URL.createObjectURL(await fit(photo, LARGEST));
    if (!wanted()) return false;
    if (image.src.startsWith("blob:")) URL.revokeObjectURL(image.src);  // or the browser keeps it
    image.src = address;
    await image.decode();
    return true;
  } catch {
    if (wanted()) image.removeAttribute("src");
    return false;
  }
}

// The URL of a thumbnail of a photo (a Blob or a URL); null if the browser cannot show the photo.
export async function thumbnail(photo) {
  try {
    const blob = photo instanceof Blob ? photo : await (await fetch(photo)).blob();
    return URL.createObjectURL(await fit(blob, SMALL));
  } catch {
    return null;
  }
}

// The file to send or to store: a shrunk copy of a large photo, upright and in sRGB, or the file itself if the browser
// cannot decode it.
export const copyToSend = (file) => smaller(file, SENT, LARGEST);
export const copyToKeep = (file) => smaller(file, STORED, KEPT);

async function smaller(file, bytes, largest) {
  if (file.size <= bytes) return file;
  const copy = await fit(file, largest, { type: "image/jpeg", quality: largest === KEPT ? 0.9 : 0.95 }).catch(() => file);
  return copy.size < file.size ? new File([copy], file.name, { type: copy.type }) : file;
}

const load = (image, src) => new Promise((done, failed) => Object.assign(image, { onload: done, onerror: failed, src }));

async function fit(photo, largest, as) {
  const image = new Image(), address = URL.createObjectURL(photo);
  try {
    await load(image, address);  // reads the size only; decoding happens when the image is drawn
    const { naturalWidth, naturalHeight } = image, scale = largest / Math.max(naturalWidth, naturalHeight);
    return scale < 1 ? await shrink(photo, ...[naturalWidth, naturalHeight].map((side) => Math.max(1, Math.round(side * scale))), as) : photo;
  } finally {
    URL.revokeObjectURL(address);
  }
}

async function shrink(photo, width, height, { type, quality } = { type: "image/webp", quality: 0.9 }) {
  const bitmap = await createImageBitmap(photo, { resizeWidth: width, resizeHeight: height, resizeQuality: "high" });
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  bitmap.close();
  return new Promise((done) => canvas.toBlob(done, type, quality));
}
