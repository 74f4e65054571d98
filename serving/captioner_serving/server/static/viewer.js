// The page's viewer. The server sends each word's heat as a small grey picture; here it is coloured
// and laid over the photo, as captioner/colors.py does it, without asking the server again.
// `element`, `props` and `watch` are gr.HTML's.

const find = (selector) => element.querySelector(selector);
const viewer = find(".viewer"), photo = find(".photo"), canvas = find(".heat"), sentence = find(".sentence");
const about = find(".about"), status = find('[role="status"]'), play = find(".play");
const strength = find(".strength"), colors = find(".colors"), smooth = find(".smooth");

let shown = null;      // the value on the page
let pictures = [];     // for each word, the smooth heat and the heat of the cells, as pixels
let shades = null;     // the photo's own light and shade, and the photo in grey
let pinned = -1;       // the word that stays when the pointer leaves
let current = -1;      // the word whose heat is on the photo; -1: the photo alone
let timer = null;      // while playing

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

function lay(context, picture, native) {
  const { width, height } = canvas;
  const [left, top, right, bottom] = native ? shown.box : [0, 0, 1, 1];
  context.imageSmoothingEnabled = !native;
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, left * width, top * height, (right - left) * width, (bottom - top) * height);
}

// captioner.colors.blend: the scale's colour, darkened by the photo's own shade, as opaque as the heat.
function drawScale(context, heat, native, scale) {
  const { opacity_gain, texture, first_color } = props.blend;
  const color = (level) => {
    const at = 6 * (first_color + Math.floor(((255 - first_color) * level) / 255));
    return [0, 2, 4].map((digit) => parseInt(scale.slice(at + digit, at + digit + 2), 16));
  };
  const table = Array.from({ length: 256 }, (_, level) => color(level));
  lay(context, paint(heat, (level) => [...table[level], 255]), native);
  context.globalCompositeOperation = "multiply";
  context.globalAlpha = texture;
  context.drawImage(shades, 0, 0, canvas.width, canvas.height);
  context.globalAlpha = 1;
  context.globalCompositeOperation = "destination-in";
  const opacity = (level) => Math.round(255 * (strength.value / 100) * Math.min(1, (opacity_gain * level) / 255));
  lay(context, paint(heat, (level) => [0, 0, 0, opacity(level)]), native);
}

// captioner.colors.blend, "spotlight": dark and grey where the model did not look.
function drawSpotlight(context, heat, native) {
  const amount = strength.value / 100;
  context.globalAlpha = amount;
  context.drawImage(shades, 0, 0, canvas.width, canvas.height);
  context.globalAlpha = amount;
  context.fillStyle = "#000";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.globalAlpha = 1;
  context.globalCompositeOperation = "destination-out";
  const light = (level) => Math.round(255 * (1 - (1 - level / 255) ** 2));
  const outside = paint(heat, (level) => [0, 0, 0, light(level)]);
  lay(context, outside, native);
}

function draw() {
  const box = photo.getBoundingClientRect(), density = window.devicePixelRatio || 1;
  const width = Math.round(box.width * density), height = Math.round(box.height * density);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.globalCompositeOperation = "source-over";
  context.globalAlpha = 1;
  context.clearRect(0, 0, width, height);
  canvas.dataset.word = current;
  if (current < 0 || !pictures[current] || !shades) return;
  const native = !smooth.checked;
  const heat = pictures[current][native ? 1 : 0];
  if (colors.value === "spotlight") drawSpotlight(context, heat, native);
  else drawScale(context, heat, native, props.scales[colors.value]);
  context.globalCompositeOperation = "source-over";
}

const percent = (value) => Math.round(100 * value) + " %";

// Where the word's attention is strongest, in words, for those who do not see the heat.
function place(index) {
  if (!shown.record.words[index].attention) return "";  // the model does not attend
  const { rows, columns, weights } = shown.record.words[index].attention;
  const best = weights.indexOf(Math.max(...weights));
  if (weights[best] * weights.length < 2) return "looked nowhere in particular";
  const third = (at, count) => Math.min(2, Math.floor((3 * (at + 0.5)) / count));
  const row = ["upper", "middle", "lower"][third(Math.floor(best / columns), rows)];
  const column = ["left", "", "right"][third(best % columns, columns)];
  if (row === "middle") return column ? "looked at the " + column : "looked in the middle";
  return column ? "looked at the " + row + " " + column
    : { upper: "looked at the top", lower: "looked at the bottom" }[row];
}

const tell = (word, index) => [percent(word.probability) + " sure", place(index)].filter(Boolean).join(", ");

function show(index) {
  current = index;
  [...sentence.children].forEach((button, i) => {
    button.classList.toggle("current", i === index);
    button.setAttribute("aria-pressed", i === pinned);
    button.tabIndex = i === Math.max(0, index) ? 0 : -1;
  });
  about.replaceChildren();
  if (index >= 0) {
    const word = shown.words[index], name = document.createElement("b");
    name.textContent = word.text;
    const gate = word.gate == null ? "" : "drew " + percent(word.gate) + " on the photo";
    about.append(name, ["", percent(word.probability) + " sure", place(index), gate]
      .filter((part, i) => !i || part).join(" · "));
  } else if (shown) {
    about.textContent = "Point at a word, or press Play. The stronger its colour, the surer the model was.";
  }
  updateLinks();
  draw();
}

function pin(index) {
  pinned = index;
  show(index);
}

function makeWord(word, index) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "word";
  button.textContent = word.text;
  button.style.setProperty("--p", word.probability);
  button.setAttribute("aria-label", word.text + ", " + tell(word, index));
  button.onpointerenter = (event) => { if (event.pointerType === "mouse" && !timer) show(index); };
  button.onfocus = () => { if (!timer) show(index); };
  button.onclick = () => { stop(); pin(pinned === index ? -1 : index); };
  return button;
}

sentence.onpointerleave = () => { if (!timer) show(pinned); };
sentence.onfocusout = (event) => { if (!timer && !sentence.contains(event.relatedTarget)) show(pinned); };
sentence.onkeydown = (event) => {
  const last = sentence.children.length - 1;
  const to = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: last }[event.key];
  if (event.key === "Escape") { stop(); pin(-1); event.preventDefault(); }
  if (to === undefined || last < 0) return;
  event.preventDefault();
  stop();
  sentence.children[(to + last + 1) % (last + 1)].focus();
};

function stop() {
  clearInterval(timer);
  timer = null;
  play.setAttribute("aria-pressed", "false");
  play.querySelector("span").textContent = "Play";
  play.querySelector("path").setAttribute("d", "M4 2.5v11l9-5.5z");
}

play.onclick = () => {
  if (timer) { stop(); return show(pinned); }
  play.setAttribute("aria-pressed", "true");
  play.querySelector("span").textContent = "Pause";
  play.querySelector("path").setAttribute("d", "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z");
  let next = 0;
  const step = () => {
    if (next >= shown.words.length) { stop(); return show(pinned); }
    show(next++);
  };
  timer = setInterval(step, 850);
  step();
};

function link(picture) {
  return new URL("page/captions/" + shown.token + "/" + picture, document.baseURI).href;
}

function updateLinks() {
  if (!shown?.token) return;
  const query = new URLSearchParams({
    word: Math.max(0, current), smooth: smooth.checked, strength: strength.value / 100, colors: colors.value,
  });
  for (const anchor of element.querySelectorAll("[data-picture]")) {
    const picture = anchor.dataset.picture;
    anchor.href = link(picture + "?" + query);
    const [kind, suffix] = picture.split(".");
    const word = kind === "overlay" ? "-" + (shown.words[Math.max(0, current)]?.text ?? "") : "-" + kind;
    anchor.download = shown.name + word + "." + suffix;
  }
  const json = find(".json");
  json.href = "data:application/json;charset=utf-8," + encodeURIComponent(JSON.stringify(shown.record));
  json.download = shown.name + ".json";
}

// A link whose photo has been deleted meanwhile says so, instead of saving an error as a picture.
for (const anchor of element.querySelectorAll("[data-picture]")) {
  anchor.onclick = async (event) => {
    event.preventDefault();
    const { href, download } = anchor;
    status.textContent = about.textContent = "Drawing…";
    const response = await fetch(href).catch(() => null);
    if (!response?.ok) {
      const problem = await response?.json().catch(() => null);
      status.textContent = about.textContent = problem?.detail ?? "The server does not answer.";
      return;
    }
    const save = document.createElement("a");
    save.href = URL.createObjectURL(await response.blob());
    save.download = download;
    save.click();
    setTimeout(() => URL.revokeObjectURL(save.href), 60000);
    status.textContent = about.textContent = "Saved " + download;
  };
}

find(".copy").onclick = async () => {
  const text = shown.caption.charAt(0).toUpperCase() + shown.caption.slice(1) + ".";
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // no clipboard without https, or without leave
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  status.textContent = about.textContent = "Copied: " + text;
};

function makeShades() {
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

async function render(value) {
  stop();
  shown = value;
  pictures = [];
  pinned = current = -1;
  sentence.replaceChildren();
  if (!value) { viewer.dataset.state = "empty"; return; }
  if (value.error) {
    const title = document.createElement("strong");
    title.textContent = value.error.title;
    find(".failure").replaceChildren(title, value.error.detail);
    viewer.dataset.state = "failed";
    return;
  }
  photo.src = link("photo.jpg");
  photo.alt = value.caption;
  sentence.append(...value.words.map(makeWord));
  find(".others").classList.toggle("any", value.alternatives.length > 0);
  find(".alternatives").replaceChildren(...value.alternatives.map((other) => {
    const item = document.createElement("li"), score = document.createElement("span");
    score.textContent = percent(Math.exp(other.score)) + " a word";
    score.title = "how sure the model was of a word, on average";
    item.append(other.caption, score);
    return item;
  }));
  viewer.dataset.state = "shown";
  status.textContent = "Caption: " + value.caption;
  try {
    await photo.decode();
  } catch {
    if (shown === value) render({ error: { title: "The photo is not kept any longer", detail: "Drop it again." } });
    return;
  }
  if (shown !== value) return;  // another photo came meanwhile
  shades = makeShades();
  const heats = await Promise.all(value.words.map((word) => 
    word.cells ? Promise.all([pixels(word.smooth), pixels(word.cells)]) : null));
  if (shown !== value) return;
  pictures = heats;
  pin(value.first);
  if (viewer.getBoundingClientRect().top > window.innerHeight * 0.8) viewer.scrollIntoView({ block: "start" });
}

colors.append(...props.colors.map((name) => new Option(name.charAt(0).toUpperCase() + name.slice(1), name)));
colors.value = props.default_colors;
strength.value = 100 * props.default_strength;
find(".limits").textContent = props.limits;
for (const control of [strength, colors, smooth]) control.oninput = () => { updateLinks(); draw(); };
new ResizeObserver(draw).observe(photo);
watch("value", () => render(props.value));
render(props.value);
