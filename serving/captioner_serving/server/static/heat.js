// Draw attention over a photo: weights of a grid -> heat of 0 to 255 per pixel -> colours. The formulas
// are those of captioner/drawing/overlay.py and of Pillow's resize, so page and files look the same.

const LEAST_LABELLED = 256;  // pixels of the shorter side
const PAPER = "#ffffff", INK = "#1c2027";

// overlay._heat_grid: 0.5 to 255.5 for each cell.
function heatGrid(weights, fullHeat) {
  const even = weights.reduce((sum, weight) => sum + weight, 0) / weights.length;
  const full = Math.log(Math.min(fullHeat, weights.length));
  return Float32Array.from(weights, (weight) => weight > even ? 0.5 + 255 * Math.min(Math.log(weight / even) / full, 1) : 0.5);
}

// Along one side: the pixels whose centres the box covers, and their position in cells.
function span(pixels, cells, low, high) {
  const [first, end] = [low, high].map((edge) => Math.min(Math.max(Math.ceil(edge * pixels - 0.5), 0), pixels));
  const [start, stop] = [first, end].map((edge) => ((edge / pixels - low) / (high - low)) * cells);
  return { first, length: end - first, start: Math.max(start, 0), stop: Math.min(stop, cells) };
}

function bicubic(x) {
  x = Math.abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

// For each pixel of a span: the first cell that contributes, and the shares of this and the next cells.
function taps({ length, start, stop }, cells, smooth) {
  const step = (stop - start) / length, stretch = Math.max(step, 1);
  return Array.from({ length }, (_, pixel) => {
    const center = start + (pixel + 0.5) * step;
    if (!smooth) return { from: Math.min(Math.floor(center), cells - 1), shares: [1] };
    const from = Math.max(0, Math.trunc(center - 2 * stretch + 0.5));
    const to = Math.min(cells, Math.trunc(center + 2 * stretch + 0.5));
    const shares = Array.from({ length: to - from }, (_, i) => bicubic((from + i - center + 0.5) / stretch));
    const sum = shares.reduce((a, b) => a + b, 0);
    return { from, shares: shares.map((share) => share / sum) };
  });
}

// overlay.attention_map: heat of 0 to 255 at each of width x height pixels.
function attentionMap({ rows, columns, box, weights }, width, height, smooth, fullHeat) {
  const grid = heatGrid(weights, fullHeat), map = new Uint8ClampedArray(width * height);
  const across = span(width, columns, box[0], box[2]), down = span(height, rows, box[1], box[3]);
  const mixed = taps(across, columns, smooth);
  const lines = Array.from({ length: rows }, (_, row) => Float32Array.from(mixed, ({ from, shares }) =>
    shares.reduce((sum, share, i) => sum + share * grid[row * columns + from + i], 0)));
  taps(down, rows, smooth).forEach(({ from, shares }, y) => {
    let at = (down.first + y) * width + across.first;
    for (let x = 0; x < across.length; x++, at++) {
      let heat = 0;
      for (let i = 0; i < shares.length; i++) heat += shares[i] * lines[from + i][x];
      const level = Math.min(255, Math.max(0, Math.trunc(heat)));
      map[at] = Math.min(level, Math.max(0, Math.floor(((level - 4) * 4) / 3)));
    }
  });
  return map;
}

// The colour of a palette for heat of 0 to 255: red, green, blue.
export function colorAt(palette, level) {
  return [0, 2, 4].map((digit) => parseInt(palette.slice(6 * level + digit, 6 * level + digit + 2), 16));
}

// overlay.blend as a layer above the photo: red, green, blue and opacity for each level of heat. The
// photo's grey is not part of it.
function inks({ colors, strength }, { palettes, opacity_gain }) {
  return Float32Array.from(Array.from({ length: 256 }, (_, level) => {
    if (colors === "spotlight") return [255, 255, 255, 255 * (1 - level / 255) ** 2 * strength * (2 - strength)];
    return [...colorAt(palettes[colors], level), 255 * strength * Math.min(1, (opacity_gain * level) / 255)];
  }).flat());
}

// lettering.label: a word in the lower left corner; a doubtful word has a dashed outline.
function label(context, text, doubtful) {
  const { width, height } = context.canvas, shorter = Math.min(width, height);
  if (shorter < LEAST_LABELLED) return;
  const size = Math.floor(shorter / 20), pad = Math.floor(size / 2), bottom = height - pad;
  context.font = `${size}px system-ui, sans-serif`;
  const most = width - 4 * pad, across = Math.min(most, context.measureText(text).width);
  context.fillStyle = PAPER;
  context.fillRect(pad, bottom - 2 * size, 2 * pad + across, 2 * size);
  context.fillStyle = context.strokeStyle = INK;
  if (doubtful) {
    context.setLineDash([Math.max(2, size / 3)]);
    context.lineWidth = Math.max(1, size / 10);
    context.strokeRect(pad, bottom - 2 * size, 2 * pad + across, 2 * size);
  }
  context.textBaseline = "middle";
  context.fillText(text, 2 * pad, bottom - size, most);
}

export class Heat {
  // drawing: the constants of captioner/drawing; look: { strength 0..1, colors, smooth }.
  constructor(canvas, photo, drawing, look) {
    Object.assign(this, { canvas, photo, drawing, look });
    this.attentions = [];  // { rows, columns, box, weights } or undefined for each word
    this.word = -1;        // the word whose heat is shown; -1: none
    new ResizeObserver(() => this.draw()).observe(photo);
  }

  show(word) {
    this.word = word;
    this.draw();
  }

  draw() {
    const { width, height } = this.photo.getBoundingClientRect(), density = window.devicePixelRatio || 1;
    this.canvas.dataset.word = this.word;
    this.#paint(this.canvas, this.attentions[this.word], Math.round(width * density), Math.round(height * density));
  }

  // The photo in its own size, with the heat and the name of a word, as a canvas.
  picture(word, { text, doubtful }) {
    const { naturalWidth: width, naturalHeight: height } = this.photo;
    const [canvas, layer] = [0, 1].map(() => Object.assign(document.createElement("canvas"), { width, height }));
    this.#paint(layer, this.attentions[word], width, height);
    const context = canvas.getContext("2d");
    for (const image of [this.photo, layer]) context.drawImage(image, 0, 0, width, height);
    label(context, text, doubtful);
    return canvas;
  }

  #paint(canvas, attention, width, height) {
    const { photo, look, drawing } = this;
    Object.assign(canvas, { width: Math.max(1, width), height: Math.max(1, height) });  // also clears it
    if (!attention || !width || !height) return;
    const heat = attentionMap(attention, width, height, look.smooth, drawing.full_heat), table = inks(look, drawing);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#fff";  // below transparent pixels
    context.fillRect(0, 0, width, height);
    context.drawImage(photo, 0, 0, width, height);
    const picture = context.getImageData(0, 0, width, height), { data } = picture;
    // Palettes: the photo's grey darkens the colour a little. Spotlight: the grey itself is drawn.
    const { texture } = drawing, dim = (1 - look.strength) / (2 - look.strength);
    const [plain, rest] = look.colors === "spotlight" ? [0, dim] : [1 - texture, texture];
    for (let i = 0; i < data.length; i += 4) {
      const ink = 4 * heat[i >> 2];
      const shade = plain + (rest * (0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2])) / 255;
      data[i] = table[ink] * shade;
      data[i + 1] = table[ink + 1] * shade;
      data[i + 2] = table[ink + 2] * shade;
      data[i + 3] = table[ink + 3];
    }
    context.putImageData(picture, 0, 0);
  }
}
