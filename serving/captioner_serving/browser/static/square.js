// Resize a photo to the encoder's square, like Pillow in the library: bilinear with antialiasing, rounded to integers
// between the two directions.
const MOST = 4096;  // pixels of a side; larger photos are shrunk by the browser first

// The photo as a bitmap in the orientation of its EXIF data; throws if the browser cannot read it.
export async function openPhoto(photo) {
  const bitmap = await createImageBitmap(photo, { imageOrientation: "from-image" });
  const scale = Math.min(1, MOST / Math.max(bitmap.width, bitmap.height));
  if (scale === 1) return bitmap;
  const small = await createImageBitmap(bitmap, {
    resizeWidth: Math.round(bitmap.width * scale), resizeHeight: Math.round(bitmap.height * scale), resizeQuality: "high",
  });
  bitmap.close();
  return small;
}

// Transform.box: the part of the photo that the square shows, in fractions of its sides.
export function boxOf({ mode, size, resize }, width, height) {
  if (mode === "squash") return [0, 0, 1, 1];
  if (mode === "pad") {
    const [x, y, across, down] = innerOf(size, width, height);
    return [-x / across, -y / down, (size - x) / across, (size - y) / down];
  }
  const covered = (Math.min(width, height) * size) / (resize ?? size), across = covered / width, down = covered / height;
  return [(1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2];
}

function innerOf(size, width, height) {
  const longer = Math.max(width, height), [across, down] = [width, height].map((side) => Math.max(1, Math.round((side * size) / longer)));
  return [(size - across) >> 1, (size - down) >> 1, across, down];
}

// The square of a bitmap, uint8 (3, size, size).
export function squareOf(bitmap, transform) {
  const { width, height } = bitmap, { mode, size, mean } = transform;
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";  // below transparent pixels
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, width, height), square = new Uint8Array(3 * size * size);
  const [x, y, across, down] = mode === "pad" ? innerOf(size, width, height) : [0, 0, size, size];
  const [left, top, right, bottom] = mode === "pad" ? [0, 0, 1, 1] : boxOf(transform, width, height);
  const columns = taps(across, width, left * width, right * width), rows = taps(down, height, top * height, bottom * height);
  const line = new Uint8Array(across * height);
  for (let channel = 0; channel < 3; channel++) {
    square.fill(Math.min(255, Math.round(255 * mean[channel])), channel * size * size, (channel + 1) * size * size);
    columns.forEach(({ from, shares }, column) => {
      for (let row = 0; row < height; row++) {
        let sum = 0;
        for (let i = 0, at = 4 * (row * width + from) + channel; i < shares.length; i++, at += 4) sum += shares[i] * data[at];
        line[row * across + column] = Math.round(sum);
      }
    });
    rows.forEach(({ from, shares }, row) => {
      const start = channel * size * size + (y + row) * size + x;
      for (let column = 0; column < across; column++) {
        let sum = 0;
        for (let i = 0; i < shares.length; i++) sum += shares[i] * line[(from + i) * across + column];
        square[start + column] = Math.round(sum);
      }
    });
  }
  return square;
}

// For each pixel along one side: the first source pixel that contributes, and the shares of this and the next pixels.
function taps(length, pixels, start, stop) {
  const step = (stop - start) / length;
  const reach = Math.max(step, 1);
  return Array.from({ length }, (_, pixel) => {
    const center = start + (pixel + 0.5) * step;
    const from = Math.max(0, Math.trunc(center - reach + 0.5)), to = Math.min(pixels, Math.trunc(center + reach + 0.5));
    const shares = Array.from({ length: to - from }, (_, i) => Math.max(0, 1 - Math.abs((from + i - center + 0.5) / reach)));
    const sum = shares.reduce((a, b) => a + b, 0);
    return { from, shares: shares.map((share) => share / sum) };
  });
}
