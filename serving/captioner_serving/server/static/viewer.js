// The viewer shows one photo: empty, waiting, failed, or with its record. It does not use the server.
import { colorAt, Heat } from "./heat.js";
import { loadPhoto } from "./photo.js";
import { altText, chooseSentence, clean, dashedOf, defaultText, doubtOf, make, makeButton, recordOf, save, stateOf } from "./record.js";
import { likely, Sentence } from "./sentence.js";
import { facts, MEANINGS, term } from "./terms.js";

// The part of each state that must be visible without scrolling.
const ENDS = { waiting: ".progress", failed: ".failure", shown: ".sentence" };
const touch = matchMedia("(hover: none)");
const LONG = 125;  // characters of an alt text

export class Viewer {
  // root: viewer.html. drawing: the constants of captioner/drawing. Callbacks:
  //   onModel(number)         another model was selected, by its index in `compared`
  //   onChoose(sentence)
  //   onCorrect(text, aside, reviewed)  the visitor's text ("": decorative, undefined: none), the text that Decorative
  //                           or Undo has replaced, and whether the photo is reviewed now
  //   onAccept(), onLeave()   Enter or Escape was pressed in the alt text
  //   draw(kind, shown, look)  returns a picture of all words to download; null without a server
  constructor(root, drawing, { onModel = () => {}, onChoose = () => {}, onCorrect = () => {}, onAccept = null, onLeave = () => {}, draw = null } = {}) {
    Object.assign(this, { root, drawing, onModel, onChoose, onCorrect, onAccept, onLeave, draw, shown: null, entry: null, photo: null });
    this.look = { strength: drawing.default_strength, colors: drawing.default_colors, smooth: true };
    this.image = this.find(".photo");
    this.status = this.find('[role="status"]');
    this.about = this.find(".about");
    this.heat = new Heat(this.find(".heat"), this.image, drawing, this.look);
    this.sentence = new Sentence(this.find(".sentence"), this.find(".play"), (index) => this.#showWord(index));
    this.find(".legend .meaning").textContent = this.find(".legend summary").title = MEANINGS.heat;
    this.#listenToLook();
    this.#listenToText();
    this.find(".json").onclick = () => this.#saveRecord();
    for (const button of root.querySelectorAll("[data-picture]")) {
      button.hidden = !draw && button.dataset.picture !== "overlay";
      button.onclick = () => this.#savePicture(button.dataset.picture);
    }
  }

  find(selector) { return this.root.querySelector(selector); }

  empty(text = touch.matches ? "Choose photos, or take one." : "Drop photos here, or choose some.") {
    this.#become("empty");
    this.find(".invitation").textContent = this.status.textContent = text;
    this.image.alt = "";
  }

  // photo: a Blob or URL; undefined if the server downloads it. phase: the progress. quiet: not for screen readers.
  // text, aside: see show(). The text can be written before the caption is there.
  wait({ photo, name, phase, quiet, text, aside }) {
    this.#become("waiting");
    this.entry = { name, text, aside };
    this.#showText();
    this.find(".unseen").textContent = (photo ? `Your browser cannot show ${name || "this file"}` : `Downloading ${name}`) + ". The picture comes with the caption.";
    this.find(".phase").textContent = phase;
    if (!quiet) this.status.textContent = phase;
    this.#stage(photo);
  }

  // problem: { title, detail }. again(): retries; null if a retry cannot help. dismiss(): removes the photo.
  // entry: { name, text, aside }, if a person can write the text.
  fail({ title, detail }, again, dismiss = null, entry = null) {
    this.#become("failed");
    this.root.toggleAttribute("data-mute", !entry);
    this.entry = entry;
    if (entry) this.#showText();
    const buttons = [again && makeButton("control retry", "Try again", again), dismiss && makeButton("control dismiss", "Remove from the list", dismiss)].filter(Boolean);
    const bar = buttons.length ? [make("p", { className: "bar" }, ...buttons)] : [];
    this.find(".failure").replaceChildren(make("strong", {}, title), detail.replace(/\.?$/, "."), ...bar);
    this.status.textContent = "";
  }

  // sentence: 0 for the caption, 1 for the first alternative. text: the visitor's text. aside: a text that Redo can
  // restore. withheld: why the sentence is not shown. compared: { name, record } of each model, if there are several.
  async show({ photo, name, url, record, sentence = 0, text, aside, withheld = "", compared = [] }) {
    const same = this.shown?.record === record && this.shown.sentence === sentence;  // only the text changes
    const focused = same ? this.sentence.buttons.indexOf(document.activeElement) : -1;
    this.#become("shown");
    const whole = chooseSentence(record, sentence), dashed = dashedOf(whole.words), doubt = doubtOf(whole, stateOf({ record, sentence }));
    const chosen = { ...whole, words: whole.words.map((word) => ({ ...word, doubtful: dashed.includes(word) })) };
    const shown = this.entry = this.shown = { photo, name, url, record, sentence, text, aside, withheld, compared, chosen };
    this.root.toggleAttribute("data-unfamiliar", Boolean(record.unfamiliar) && !withheld);
    this.root.toggleAttribute("data-withheld", Boolean(withheld));
    Object.assign(this.find(".withheld"), { hidden: !withheld, textContent: withheld });
    this.find(".doubt").textContent = doubt;
    this.sentence.set(chosen.words.map((word) => ({ ...word, text: word.word, description: describe(word, chosen), tint: word.trust ?? 0 })));
    this.heat.attentions = [];
    this.#listModels();
    this.#listSentences();
    this.#showWord(-1);
    for (const line of [".copied", ".saved"]) this.find(line).textContent = "";
    this.#showText();
    const warnings = [record.unfamiliar && this.find(".unlike").textContent, doubt].filter(Boolean);
    if (!same) this.status.textContent = withheld || ["Caption: " + altText(chosen.caption), ...warnings].join(" ");
    this.find(".unseen").textContent = "Your browser cannot show this photo. Its caption is below.";
    const picture = record.preview?.image ?? photo, isNew = picture !== this.photo, seen = await this.#stage(picture);
    if (this.shown !== shown) return;
    // On a phone a photo that appears with its words would cover them.
    if (isNew && getComputedStyle(this.find(".stage")).position === "sticky" && this.root.getBoundingClientRect().top < 0) this.root.scrollIntoView();
    if (seen && !withheld) this.heat.attentions = chosen.words.map((word) => word.attention);
    this.sentence.pin(withheld ? -1 : firstShown(whole.words));
    this.sentence.buttons[focused]?.focus({ preventScroll: true });
  }

  #become(state) {
    const { root } = this, before = root.dataset.state;
    this.shown = this.entry = null;
    this.sentence.stop();
    if (state !== "shown") {
      this.heat.attentions = [];
      this.heat.show(-1);
    }
    root.dataset.state = state;
    root.ariaBusy = state === "waiting";
    if (before !== state && state in ENDS) reveal(state === "failed" ? document.body : root, this.find(ENDS[state]));
  }

  // Load a photo. Returns false if the browser cannot show it, or another photo has replaced it.
  async #stage(photo) {
    if (photo !== this.photo) {
      this.photo = photo;
      this.root.removeAttribute("data-unseen");
      this.root.toggleAttribute("data-coming", true);
      this.staged = loadPhoto(this.image, photo, () => this.photo === photo);
    }
    const ready = await this.staged;
    if (this.photo !== photo) return false;
    const { naturalWidth, naturalHeight } = this.image, { style } = this.find(".frame");
    style.setProperty("--ratio", naturalHeight ? naturalWidth / naturalHeight : 1.5);
    style.setProperty("--wide", naturalWidth);
    this.root.removeAttribute("data-coming");
    this.root.toggleAttribute("data-unseen", !ready);
    return ready;
  }

  #showWord(index) {
    this.heat.show(index);
    const { chosen } = this.shown ?? {};
    if (!chosen) return;
    if (index < 0) {
      this.about.textContent = (touch.matches ? "Tap" : "Point at") + " a word, or press Play."
        + (hasTrust(chosen) ? " The stronger the colour behind a word, the likelier it is right." : "");
      return;
    }
    const terms = facts(chosen.words[index], hasTrust(chosen)).map(([key, text]) => term(key, text));
    this.about.replaceChildren(make("b", {}, chosen.words[index].word), ...terms);
  }

  #choose(sentence) {
    if (this.shown.sentence === sentence) return;
    this.show({ ...this.shown, sentence });
    this.onChoose(sentence);
  }

  // List the captions of all models; the words of one are shown below.
  #listModels() {
    const { compared, record } = this.shown, list = this.find(".models");
    const focused = list.contains(document.activeElement);
    list.hidden = !compared.length;
    list.replaceChildren(...compared.map(({ name, record: listed, problem }, number) => {
      const trust = problem ? problem.detail : listed.trust === undefined ? "trust unknown" : likely(listed.trust) + " likely right";
      const button = Object.assign(makeButton("", "", () => this.onModel(number)), { ariaPressed: String(listed === record), disabled: Boolean(problem) });
      button.append(make("b", {}, name), problem ? problem.title : altText(listed.caption), make("span", {}, trust));
      return button;
    }));
    if (focused) list.querySelector("[aria-pressed=true]")?.focus({ preventScroll: true });
  }

  #listSentences() {
    const { record, sentence } = this.shown, list = this.find(".sentences"), sentences = [record, ...record.alternatives];
    this.find(".others").classList.toggle("any", sentences.length > 1);
    this.find(".hint").textContent = (touch.matches ? "Tap" : "Click") + " a sentence to see its words.";
    if (this.listed !== record) {
      this.listed = record;
      list.replaceChildren(...sentences.map(({ caption }, number) => make("li", {}, makeButton("", altText(caption), () => this.#choose(number)))));
    }
    [...list.children].forEach((item, number) => { item.firstChild.ariaPressed = number === sentence; });
  }

  #listenToLook() {
    const { look, drawing } = this, [strength, colors, smooth] = [".strength", ".colors", ".smooth"].map((name) => this.find(name));
    const drawScale = () => {
      const steps = look.colors === "spotlight" ? ["#000", "#fff"]
        : Array.from({ length: 9 }, (_, i) => `rgb(${colorAt(drawing.palettes[look.colors], Math.round((255 * i) / 8))})`);
      this.find(".scale").style.background = `linear-gradient(90deg, ${steps})`;
    };
    this.find(".plain").onchange = ({ target }) => this.root.toggleAttribute("data-plain", target.checked);
    colors.append(...drawing.colors.map((name) => new Option(name.charAt(0).toUpperCase() + name.slice(1), name)));
    colors.value = look.colors;
    strength.value = 100 * look.strength;
    for (const control of [strength, colors, smooth]) {
      control.oninput = () => {
        Object.assign(look, { strength: strength.value / 100, colors: colors.value, smooth: smooth.checked });
        drawScale();
        this.heat.draw();
      };
    }
    drawScale();
  }

  // Say something beside the alt text or the downloads, until it is no longer true.
  say(text, place = ".copied") { this.status.textContent = this.find(place).textContent = text; }

  async #savePicture(kind) {
    const { shown } = this, index = Math.max(0, this.sentence.current);
    const part = kind === "overlay" ? shown.chosen.words[index]?.word : kind;
    const name = `${stem(shown.name)}-${part}.${kind === "animation" ? "webp" : "png"}`;
    this.say("Drawing …", ".saved");
    try {
      save(await (kind === "overlay" ? this.#drawWord(index) : this.draw(kind, shown, this.look)), name);
      this.say("Saved " + name, ".saved");
    } catch (problem) {
      if (this.shown === shown) this.say(`${problem.title ?? "No picture"}: ${problem.detail ?? problem.message}`.replace(/\.?$/, "."), ".saved");
    }
  }

  // The photo with the heat of one word, as a PNG.
  async #drawWord(index) {
    if (!this.heat.attentions[index]) throw { title: "There is nothing to draw", detail: "This word has no attention on a photo that the browser shows." };
    const { word: text, doubtful } = this.shown.chosen.words[index], canvas = this.heat.picture(index, { text, doubtful });
    return new Promise((done, fail) => canvas.toBlob((blob) => blob ? done(blob) : fail({ title: "No picture", detail: "The browser cannot write it" }), "image/png"));
  }

  #saveRecord() {
    save(new Blob([JSON.stringify(recordOf(this.shown))], { type: "application/json" }), stem(this.shown.name) + ".json");
  }

  #listenToText() {
    const field = this.find(".text"), decorative = this.find(".decorative");
    // aside: the text that Decorative or Undo has replaced; Redo restores it.
    const correct = (text, aside = this.entry.aside) => {
      const isPlain = text === plainOf(this.entry) && !decorative.checked;
      Object.assign(this.entry, { text: isPlain ? undefined : clean(text), aside });
      this.find(".copied").textContent = "";
      this.#showText();
      this.onCorrect(this.entry.text, aside, this.entry.text !== undefined);
    };
    const setAside = () => this.entry.text || this.entry.aside;
    field.oninput = () => { decorative.checked = false; correct(field.value); };
    field.onkeydown = (event) => {
      if (event.isComposing || event.keyCode === 229 || event.shiftKey) return;  // 229: composing, in Safari
      if (event.key === "Escape") this.onLeave();
      if (event.key !== "Enter" || !this.onAccept) return;
      event.preventDefault();
      if (this.entry.text !== undefined || !this.root.hasAttribute("data-coming")) this.onAccept();  // not before the photo is shown
    };
    decorative.onchange = () => {
      const { aside } = this.entry;
      if (decorative.checked) correct("", setAside());
      else correct(aside);
    };
    this.find(".undo").onclick = () => {
      const { text, aside } = this.entry;
      decorative.checked = false;
      if (text === undefined) correct(aside);
      else correct(undefined, setAside());
      field.focus();
    };
    this.find(".use").onclick = () => { correct(altText(this.shown.chosen.caption)); field.focus(); };
    this.find(".copy").onclick = async () => {
      const text = field.value;
      await copy(text);
      this.say("Copied");
      this.status.textContent = text ? "Copied: " + text : "Copied: an empty text.";
    };
    this.find(".enter").hidden = !this.onAccept || touch.matches;
  }

  write() { if (this.entry) this.find(".text").focus(); }

  toggleDecorative() { if (this.entry) this.find(".decorative").click(); }

  togglePlain() { this.find(".plain").click(); }

  #showText() {
    const { chosen, name, text, aside, withheld } = this.entry, field = this.find(".text");
    const plain = plainOf(this.entry), now = text ?? plain, undo = this.find(".undo"), length = this.find(".length");
    if (field.value !== now) field.value = now;
    field.placeholder = plain || withheld || !chosen ? "" : "Perhaps: " + altText(chosen.caption);
    this.find(".use").hidden = Boolean(!chosen || now || withheld || text === "");
    this.find(".decorative").checked = text === "";
    undo.hidden = text === undefined && !aside;
    undo.textContent = text === undefined ? "Redo the correction" : "Undo the correction";
    length.textContent = now.length > 60 ? `${now.length} of ${LONG} characters` : "";
    length.classList.toggle("long", now.length > LONG);
    this.image.alt = text ?? (withheld || !chosen ? name ?? "" : altText(chosen.caption));
  }
}

// The text without a correction.
const plainOf = ({ record, chosen }) => (record ? defaultText(record, chosen.caption) : "");

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // the clipboard needs https and permission
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

// The first word with trust that is not doubtful, otherwise the first with trust; without trust, the most visual word.
function firstShown(words) {
  const named = words.filter((word) => word.trust !== undefined);
  if (named.length) return words.indexOf(named.find((word) => !word.doubtful) ?? named[0]);
  const drawn = words.map(({ gate, attention }) => gate ?? Math.max(0, ...(attention?.weights ?? [])));
  return drawn.indexOf(Math.max(...drawn));
}

// Whether the model of a sentence estimates trust. Words without a claim, such as "of", have none.
const hasTrust = ({ familiarity, words }) => familiarity !== undefined || words.some((word) => word.trust !== undefined);

// The description of a word for screen readers.
const describe = (word, chosen) => facts(word, hasTrust(chosen))
  .filter(([name]) => !["visual", "effect"].includes(name)).map((fact) => fact[1]).join(", ");

const stem = (name) => name.replace(/\.[^.]*$/, "") || name;

// Scroll a part into view on small screens.
function reveal(top, part) {
  const { bottom } = part.getBoundingClientRect();
  if (bottom <= innerHeight && top.getBoundingClientRect().top >= 0) return;
  top.scrollIntoView({ block: "start" });  // not smooth, because another state may follow soon
}
