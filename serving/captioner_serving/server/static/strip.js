// The photos that came in, with their sentences: each opens its words, all of them can be taken home.
import { thumbnail } from "./photo.js";
import { altText, chooseSentence, FORMATS, isToReview, marksOf, save, textOf } from "./record.js";

export class Strip {
  // onOpen gets the key of a photo to open; onClear is called to forget all. onRemove gets the key of one to remove, onUndo
  // brings the last one back: without them there is no reviewing.
  constructor(root, { onOpen, onClear, onRemove = null, onUndo = null }) {
    Object.assign(this, { root, onOpen, onRemove, onUndo, photos: [], items: new Map(), onlyReview: false });
    this.list = root.querySelector(".photos");
    this.review = root.querySelector(".review");
    this.review.onclick = () => { this.onlyReview = !this.onlyReview; this.show(this.photos, this.open); };
    this.list.onkeydown = (event) => this.#walk(event);
    for (const button of root.querySelectorAll("[data-format]")) button.onclick = () => this.#save(button.dataset.format);
    const clear = root.querySelector(".clear"), calm = () => { clear.textContent = "Empty"; };
    clear.onclick = () => {
      if (clear.textContent === "Empty") {  // a second click says that it is meant
        clear.textContent = `Forget ${this.photos.length}?`;
        return;
      }
      calm();
      onClear();
    };
    clear.onblur = calm;
  }

  // photos, oldest first: { key, name, photo, phase, record or problem, sentence, text }; open: the
  // key of the one on the stage.
  show(photos, open) {
    Object.assign(this, { photos, open });
    this.root.hidden = !photos.length;
    const keys = new Set(photos.map((each) => each.key));
    for (const [key, item] of this.items) if (!keys.has(key)) { item.remove(); this.items.delete(key); }
    for (const each of photos) this.#update(this.items.get(each.key) ?? this.#make(each), each, each.key === open);
    photos.forEach(({ key }, at) => { const item = this.items.get(key); if (this.list.children[at] !== item) this.list.insertBefore(item, this.list.children[at] ?? null); });
    this.#filter();
    const done = photos.filter(isDone).length, failed = photos.filter((each) => each.problem).length;
    const count = done < photos.length ? `${done} of ${photos.length}` : `${photos.length}${failed ? `, ${failed} without a caption` : ""}`;
    if (photos.length > 1 && this.done < this.asked && done === photos.length) this.root.querySelector(".news").textContent = "All photos are done: " + count;
    Object.assign(this, { done, asked: photos.length });
    this.root.querySelector(".count").textContent = count;
    for (const button of this.root.querySelectorAll("[data-format]")) button.disabled = !done;
  }

  // The next photo in the list, or the previous one; those that the filter hides are passed over.
  neighbour(step) {
    const shown = this.photos.filter(({ key }) => !this.items.get(key).hidden), at = shown.findIndex(({ key }) => key === this.open);
    return shown[at + step]?.key;
  }

  focus(key) { this.items.get(key)?.firstChild.focus(); }

  // Say that a photo was removed; null: that is over.
  offerUndo(name) {
    const line = this.root.querySelector(".removed"), undo = document.createElement("button");
    Object.assign(undo, { type: "button", className: "control", textContent: "Undo", onclick: this.onUndo });
    line.replaceChildren(...(name === null ? [] : [`Removed ${name}. `, undo]));
  }

  #filter() {
    const { review, photos, onlyReview, onRemove } = this, left = photos.filter(isToReview);
    review.hidden = !onRemove || photos.length < 2;
    this.root.querySelector(".hint").hidden = review.hidden || matchMedia("(hover: none)").matches;
    review.ariaPressed = String(onlyReview);
    review.querySelector("b").textContent = left.length;
    const isHidden = (each) => onlyReview && !review.hidden && each.key !== this.open && Boolean(each.record || each.problem) && !isToReview(each);
    for (const each of photos) this.items.get(each.key).hidden = isHidden(each);
  }

  #walk(event) {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey || !this.onRemove) return;
    if (event.key === "Delete") { event.preventDefault(); return this.onRemove(this.open); }
    const key = step && this.neighbour(step);
    if (step) event.preventDefault();
    if (key === undefined || !step) return;
    this.onOpen(key);
    this.focus(key);
  }

  #make(each) {
    const item = document.createElement("li"), button = document.createElement("button");
    Object.assign(button, { type: "button", title: each.name, onclick: () => this.onOpen(each.key) });
    const marks = Object.assign(document.createElement("small"), { className: "marks" });
    button.append(Object.assign(new Image(), { alt: "" }), document.createElement("span"), marks);
    item.append(button);
    this.list.append(item);
    this.items.set(each.key, item);
    return item;
  }

  #update(item, each, isOpen) {
    const button = item.firstChild, [image, line, marks] = button.children, picture = each.record?.preview?.image ?? each.photo;
    const text = lineOf(each);
    if (line.textContent !== text) line.textContent = text;
    item.dataset.state = each.problem ? "failed" : each.record ? "done" : "waiting";
    marks.textContent = each.problem ? "" : marksOf(each).join(", ");
    item.toggleAttribute("data-corrected", each.text !== undefined);
    if (picture && item.picture !== picture) {
      item.picture = picture;
      thumbnail(picture).then((small) => { if (small && item.picture === picture) image.src = small; });
    }
    if (isOpen && button.ariaCurrent !== "true") {  // the list alone is scrolled to it, not the page
      const { offsetTop, offsetLeft, offsetHeight, offsetWidth } = item, { list } = this;
      list.scrollTo(offsetLeft - (list.clientWidth - offsetWidth) / 2, offsetTop - (list.clientHeight - offsetHeight) / 2);
    }
    button.ariaCurrent = String(isOpen);
  }

  #save(format) {
    const { type, make } = FORMATS[format];
    save(new Blob([make(this.photos.filter(isDone))], { type }), "captions." + format);
  }
}

const isDone = (each) => Boolean(each.record || each.problem);

function lineOf(each) {
  if (each.problem) return `${each.name}: ${each.problem.title}`;
  if (!each.record) return each.phase ?? "Waits its turn …";
  if (each.text === undefined && each.record.review) return "No caption that could be trusted";
  if (each.text === undefined && each.record.unfamiliar) return "Perhaps: " + altText(chooseSentence(each.record, each.sentence).caption);
  return textOf(each) || "Decorative";
}
