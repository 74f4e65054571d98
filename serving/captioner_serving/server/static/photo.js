// A photo on the stage. A large one is made small before it is drawn: 48 megapixels would take the
// browser 200 MB, and no screen shows them.
const LARGEST = 2048;  // pixels
const SENT = 4e6;      // bytes of a file that is sent as it is
const SMALL = 160;     // of a thumbnail's longer side

// Show a photo, a Blob or an address or none yet, in an image, unless it is no longer wanted; false where the
// browser cannot show it.
export async function loadPhoto(image, photo, wanted) {
  let address = photo;
  try {
    if (!photo) throw new Error("it comes later");
    if (photo instanceof Blob) address = URL.createObjectURL(await fit(photo));
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

// A small picture of a photo, a Blob or an address, as a data URL; null where the browser cannot show it.
export async function thumbnail(photo) {
  const address = photo instanceof Blob ? URL.createObjectURL(photo) : photo, image = new Image();
  try {
    await new Promise((done, failed) => Object.assign(image, { onload: done, onerror: failed, src: address }));
    const scale = Math.min(1, SMALL / Math.max(image.naturalWidth, image.naturalHeight));
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: Math.max(1, scale * image.naturalWidth), height: Math.max(1, scale * image.naturalHeight) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/jpeg", 0.85);
  } catch {
    return null;
  } finally {
    if (address !== photo) URL.revokeObjectURL(address);
  }
}

// What is sent of a photo: a copy of at most 2,048 pixels of a large file, upright and in sRGB, where the browser can
// decode it; else the file itself. The model sees a few hundred pixels.
export async function copyToSend(file) {
  if (file.size <= SENT) return file;
  const copy = await fit(file, { type: "image/jpeg", quality: 0.95 }).catch(() => file);
  return copy.size < file.size ? new File([copy], file.name, { type: copy.type }) : file;
}

async function fit(photo, as) {
  const image = new Image(), address = URL.createObjectURL(photo);
  try {
    // Until it is drawn, an image is read and not decoded.
    await new Promise((done, failed) => Object.assign(image, { onload: done, onerror: failed, src: address }));
    const { naturalWidth, naturalHeight } = image, scale = LARGEST / Math.max(naturalWidth, naturalHeight);
    return scale < 1 ? await shrink(photo, Math.round(naturalWidth * scale), Math.round(naturalHeight * scale), as) : photo;
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
