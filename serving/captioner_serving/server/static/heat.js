// Where the model looked, laid over the photo. The server sends each word's heat as a small grey
// picture; here it is coloured as captioner/drawing/colors.py does it, without asking again.

function sheet(width, height) {
  const drawing = document.createElement("canvas");
  drawing.width = Math.max(1, width);
  drawing.height = Math.max(1, height);
  return drawing;
}

async function pixels(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  const drawing = sheet(image.naturalWidth, image.naturalHeight);
  const context = drawing.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  return context.getImageData(0, 0, drawing.width, drawing.height);
}

// Heat (grey) -> a picture made by a function from heat to red, green, blue, alpha.
function paint(heat, ink) {
  const drawing = sheet(heat.width, heat.height);
  const context = drawing.getContext("2d");
  const result = context.createImageData(heat.width, heat.height);
  for (let i = 0; i < heat.data.length; i += 4) result.data.set(ink(heat.data[i]), i);
  context.putImageData(result, 0, 0);
  return drawing;
}

// The photo's own light and shade: the photo in grey.
function shadesOf(photo) {
  const drawing = sheet(photo.naturalWidth, photo.naturalHeight);
  const context = drawing.getContext("2d");
  context.drawImage(photo, 0, 0);
  const image = context.getImageData(0, 0, drawing.width, drawing.height), { data } = image;
  for (let i = 0; i < data.length; i += 4) {
    data[i] = data[i + 1] = data[i + 2] = 0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2];
  }
  context.putImageData(image, 0, 0);
  return drawing;
}

export class Heat {
  // look: { strength 0..1, colors, smooth }, changed by the controls.
  constructor(canvas, photo, { blend, scales, look }) {
    Object.assign(this, { canvas, photo, blend, scales, look });
    this.maps = [];      // for each word, its smooth heat and the heat of its cells
    this.shades = null;
    this.box = null;
    this.word = -1;      // whose heat is on the photo; -1: the photo alone
    new ResizeObserver(() => this.draw()).observe(photo);
  }

  clear() {
    this.maps = [];
    this.shades = null;
    this.show(-1);
  }

  // The maps of a value's words; false when another photo came meanwhile.
  async load(value) {
    const maps = this.maps = [];
    const ready = await Promise.all(
      value.words.map((word) => word.smooth && Promise.all([pixels(word.smooth), pixels(word.cells)])));
    if (this.maps !== maps) return false;
    this.shades = shadesOf(this.photo);
    this.box = value.box;
    this.maps = ready;
    return true;
  }

  show(word) {
    this.word = word;
    this.draw();
  }

  draw() {
    const { canvas, photo, look } = this;
    const box = photo.getBoundingClientRect(), density = window.devicePixelRatio || 1;
    const width = Math.round(box.width * density), height = Math.round(box.height * density);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.globalCompositeOperation = "source-over";
    context.globalAlpha = 1;
    context.clearRect(0, 0, width, height);
    canvas.dataset.word = this.word;
    const maps = this.maps[this.word];
    if (!maps || !this.shades) return;
    const heat = maps[look.smooth ? 0 : 1];
    if (look.colors === "spotlight") this.#spotlight(context, heat);
    else this.#scale(context, heat, this.scales[look.colors]);
    context.globalCompositeOperation = "source-over";
  }

  // Whole photos for smooth maps, the grid's own box for cells.
  #lay(context, picture) {
    const { width, height } = this.canvas, native = !this.look.smooth;
    const [left, top, right, bottom] = native ? this.box : [0, 0, 1, 1];
    context.imageSmoothingEnabled = !native;
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, left * width, top * height, (right - left) * width, (bottom - top) * height);
  }

  // captioner.drawing.colors.blend: the scale's colour, darkened by the photo's own shade, as opaque
  // as the heat.
  #scale(context, heat, scale) {
    const { opacity_gain, texture } = this.blend;
    const table = Array.from({ length: 256 }, (_, level) => colorAt(scale, level, this.blend));
    this.#lay(context, paint(heat, (level) => [...table[level], 255]));
    context.globalCompositeOperation = "multiply";
    context.globalAlpha = texture;
    context.drawImage(this.shades, 0, 0, this.canvas.width, this.canvas.height);
    context.globalAlpha = 1;
    context.globalCompositeOperation = "destination-in";
    const opacity = (level) => Math.round(255 * this.look.strength * Math.min(1, (opacity_gain * level) / 255));
    this.#lay(context, paint(heat, (level) => [0, 0, 0, opacity(level)]));
  }

  // captioner.drawing.colors.blend, "spotlight": dark and grey where the model did not look.
  #spotlight(context, heat) {
    const { width, height } = this.canvas;
    context.globalAlpha = this.look.strength;
    context.drawImage(this.shades, 0, 0, width, height);
    context.fillStyle = "#000";
    context.fillRect(0, 0, width, height);
    context.globalAlpha = 1;
    context.globalCompositeOperation = "destination-out";
    const light = (level) => Math.round(255 * (1 - (1 - level / 255) ** 2));
    this.#lay(context, paint(heat, (level) => [0, 0, 0, light(level)]));
  }
}

// A scale's colour for heat of 0 to 255: red, green, blue.
export function colorAt(scale, level, { first_color }) {
  const at = 6 * (first_color + Math.floor(((255 - first_color) * level) / 255));
  return [0, 2, 4].map((digit) => parseInt(scale.slice(at + digit, at + digit + 2), 16));
}
