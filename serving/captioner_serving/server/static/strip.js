// The list of photos with their sentences: open, review, remove and download them.
import { thumbnail } from "./photo.js";
import { altText, chooseSentence, FORMATS, isToReview, make, makeButton, marksOf, save, stateOf, textOf, trainable, trainingFiles, worstFirst } from "./record.js";
import { zip } from "./zip.js";

export class Strip {
  // onOpen and onRemove are called with the key of a photo, onWrite to write the open one's text, onClear to remove all,
  // onUndo to restore the last removed photo. Without onRemove, reviewing is disabled. fileOf(photo) returns the File for a training set,
  // keptUntil(key) the date until which a photo is stored.
  constructor(root, { onOpen, onWrite = () => {}, onClear, onRemove = null, onUndo = null, fileOf = null, keptUntil = null }) {
    Object.assign(this, { root, onOpen, onWrite, onRemove, onUndo, fileOf, keptUntil, photos: [], items: new Map(), onlyReview: false, isSorted: false });
    this.list = root.querySelector(".photos");
    this.removed = root.querySelector(".removed");
    this.review = root.querySelector(".review");
    this.review.onclick = () => { this.onlyReview = !this.onlyReview; this.show(this.photos, this.open); };
    this.worst = root.querySelector(".worst");
    this.worst.onclick = () => { this.isSorted = !this.isSorted; this.worst.ariaPressed = String(this.isSorted); this.show(this.photos, this.open); };
    this.list.onkeydown = (event) => this.#press(event);
    for (const button of root.querySelectorAll("[data-format]")) button.onclick = () => this.#download(button.dataset.format);
    const train = root.querySelector(".train");
    train.hidden = !fileOf;
    train.onclick = () => this.#saveTraining();
    const clear = root.querySelector(".clear"), reset = () => { clear.textContent = "Empty"; };
    clear.onclick = () => {
      if (clear.textContent === "Empty") {  // a second click confirms
        clear.textContent = `Delete ${this.photos.length}?`;
        return;
      }
      reset();
      onClear();
    };
    clear.onblur = reset;
  }

  // photos: { key, name, photo, phase, record or problem, sentence, text }, oldest first. open: the key of the open one.
  show(photos, open) {
    photos = this.isSorted ? worstFirst(photos) : [...photos].sort((a, b) => a.key - b.key);
    Object.assign(this, { photos, open });
    this.root.hidden = !photos.length && !this.removed.hasChildNodes();
    const keys = new Set(photos.map((photo) => photo.key));
    for (const [key, item] of this.items) if (!keys.has(key)) { item.remove(); this.items.delete(key); }
    for (const photo of photos) this.#update(this.items.get(photo.key) ?? this.#make(photo), photo, photo.key === open);
    photos.forEach(({ key }, at) => { const item = this.items.get(key); if (this.list.children[at] !== item) this.list.insertBefore(item, this.list.children[at] ?? null); });
    this.#filter();
    const done = photos.filter(isDone).length, failed = photos.filter((photo) => photo.problem).length;
    const count = done < photos.length ? `${done} of ${photos.length}` : `${photos.length}${failed ? `, ${failed} without a caption` : ""}`;
    if (photos.length > 1 && this.done < this.asked && done === photos.length) this.root.querySelector(".news").textContent = "All photos are done: " + count;
    const state = `${photos.length} ${photos.filter(isToReview).length}`;
    if (state !== this.state) this.#answer("");  // the message is about an earlier state of the list
    if (photos.length !== this.asked) this.root.querySelector(".clear").textContent = "Empty";  // it names another number
    Object.assign(this, { done, asked: photos.length, state });
    this.root.querySelector(".count").textContent = count;
    for (const button of this.root.querySelectorAll("[data-format], .train")) button.disabled = !done;
    const first = Math.min(...photos.filter(({ text }) => text === undefined).map(({ key }) => key));
    if (this.keptUntil) this.root.querySelector(".kept").textContent = (first < Infinity ? `Kept in this browser until ${DAY.format(this.keptUntil(first))}; p` : "P") + "hotos with your words, until you remove them.";
  }

  // The key of the next (step 1) or previous (-1) photo that the filter does not hide.
  neighbour(step) {
    const shown = this.photos.filter(({ key }) => !this.items.get(key).hidden), at = shown.findIndex(({ key }) => key === this.open);
    return shown[at + step]?.key;
  }

  focus(key) { this.items.get(key)?.firstChild.focus(); }

  // Offer to undo the removal of the photo `name`; null: stop offering it.
  offerUndo(name) {
    this.removed.replaceChildren(...(name === null ? [] : [`Removed ${name}. `, makeButton("control", "Undo", this.onUndo)]));
  }

  #filter() {
    const { review, photos, onlyReview, onRemove } = this, count = photos.filter(isToReview).length;
    review.hidden = !onRemove || photos.length < 2;
    this.worst.hidden = review.hidden || !photos.some(stateOf);
    this.root.querySelector(".hint").hidden = review.hidden || matchMedia("(hover: none)").matches;
    review.ariaPressed = String(onlyReview);
    review.querySelector("b").textContent = count;
    const isHidden = (photo) => onlyReview && !review.hidden && photo.key !== this.open && Boolean(photo.record || photo.problem) && !isToReview(photo);
    for (const photo of photos) this.items.get(photo.key).hidden = isHidden(photo);
  }

  // Open the next (step 1) or previous (-1) photo.
  walk(step) {
    const key = this.neighbour(step);
    if (key === undefined) return;
    this.onOpen(key);
    this.focus(key);
  }

  #press(event) {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Delete" && this.onRemove) { event.preventDefault(); return this.onRemove(this.open); }
    if (event.key === "Enter") { event.preventDefault(); event.target.click(); return this.onWrite(); }
    if (!step) return;
    event.preventDefault();
    this.walk(step);
  }

  #make(photo) {
    const button = Object.assign(makeButton("", "", () => this.onOpen(photo.key)), { title: photo.name });
    button.append(make("img", { alt: "" }), make("span"), make("small", { className: "marks" }));
    const item = make("li", {}, button);
    this.list.append(item);
    this.items.set(photo.key, item);
    return item;
  }

  #update(item, photo, isOpen) {
    const button = item.firstChild, [image, line, marks] = button.children, picture = photo.record?.preview?.image ?? photo.photo;
    const text = lineOf(photo);
    if (line.textContent !== text) line.textContent = text;
    item.dataset.mark = photo.reviewed ? "reviewed" : stateOf(photo);
    item.dataset.state = photo.problem ? "failed" : photo.record ? "done" : "waiting";
    item.toggleAttribute("data-reviewed", !isToReview(photo) && isDone(photo));
    marks.textContent = photo.reviewed ? "✓ reviewed" : photo.problem ? "" : marksOf(photo).join(", ");
    item.toggleAttribute("data-corrected", photo.text !== undefined);
    if (picture && item.picture !== picture) {
      item.picture = picture;
      thumbnail(picture).then((small) => { if (small && item.picture === picture) image.src = small; });
    }
    if (isOpen && button.ariaCurrent !== "true") {  // scroll the list, not the page
      const { offsetTop, offsetLeft, offsetHeight, offsetWidth } = item, { list } = this;
      list.scrollTo(offsetLeft - (list.clientWidth - offsetWidth) / 2, offsetTop - (list.clientHeight - offsetHeight) / 2);
    }
    button.ariaCurrent = String(isOpen);
    button.tabIndex = isOpen || (this.open === undefined && photo === this.photos[0]) ? 0 : -1;  // the list is one stop
  }

  async #saveTraining() {
    const photos = trainable(this.photos), files = [];
    if (!photos.length) return this.#answer("No photos are reviewed yet. Press Enter in each alt text that is right.");
    this.#answer("Collecting photos …");
    try {
      for (const [at, photo] of photos.entries()) files.push(...trainingFiles(photo, await this.fileOf(photo), at + 1));
    } catch (problem) {
      return this.#answer(`${problem.title}: ${problem.detail}`);
    }
    files.push({ name: "captions.jsonl", blob: new Blob([FORMATS.jsonl.make(photos)]) });
    save(await zip(files), "captions.zip");
    this.#answer(`Saved ${photos.length} reviewed photos of ${this.photos.length}.`);
  }

  #download(format) {
    const done = this.photos.filter(isDone), reviewed = done.filter((photo) => !isToReview(photo));
    const download = (photos) => {
      save(new Blob([FORMATS[format].make(photos)], { type: FORMATS[format].type }), "captions." + format);
      this.#answer(`Saved captions.${format}: ${photos.length} of ${this.photos.length} photos.`);
    };
    if (!this.onRemove || reviewed.length === done.length) return download(done);
    const choices = { [`Download all ${done.length}`]: done, ...(reviewed.length ? { "Only reviewed": reviewed } : {}) };
    const buttons = Object.entries(choices).map(([text, photos]) => makeButton("control", text, () => download(photos)));
    this.#answer(`${done.length - reviewed.length} of ${done.length} photos are not reviewed. `, ...buttons);
    buttons[0].focus();
  }

  #answer(...parts) {
    const line = this.root.querySelector(".answer");
    line.replaceChildren(...parts);
    line.scrollIntoView({ block: "nearest" });
  }
}

const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "long" });

const isDone = (photo) => Boolean(photo.record || photo.problem);

function lineOf(photo) {
  if (photo.problem) return `${photo.name}: ${photo.problem.title}`;
  if (!photo.record) return photo.phase ?? "Waiting …";
  if (photo.text === undefined && photo.record.review) return "No trusted caption";
  if (photo.text === undefined && photo.record.unfamiliar) return "Perhaps: " + altText(chooseSentence(photo.record, photo.sentence).caption);
  return textOf(photo) || "Decorative";
}
