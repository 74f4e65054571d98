// The photos that came in, with their sentences: each opens its words, all of them can be taken home.
import { thumbnail } from "./photo.js";
import { FORMATS, save, textOf } from "./record.js";

export class Strip {
  // onOpen hears which photo is to be opened; onClear that all are to be forgotten.
  constructor(root, { onOpen, onClear }) {
    Object.assign(this, { root, onOpen, photos: [], items: new Map() });
    this.list = root.querySelector(".photos");
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
    this.photos = photos;
    this.root.hidden = !photos.length;
    const keys = new Set(photos.map((each) => each.key));
    for (const [key, item] of this.items) if (!keys.has(key)) { item.remove(); this.items.delete(key); }
    for (const each of photos) this.#update(this.items.get(each.key) ?? this.#make(each), each, each.key === open);
    const done = photos.filter(isDone).length, failed = photos.filter((each) => each.problem).length;
    const count = done < photos.length ? `${done} of ${photos.length}` : `${photos.length}${failed ? `, ${failed} without a caption` : ""}`;
    if (photos.length > 1 && this.done < this.asked && done === photos.length) this.root.querySelector(".news").textContent = "All photos are done: " + count;
    Object.assign(this, { done, asked: photos.length });
    this.root.querySelector(".count").textContent = count;
    for (const button of this.root.querySelectorAll("[data-format]")) button.disabled = !done;
  }

  #make(each) {
    const item = document.createElement("li"), button = document.createElement("button");
    Object.assign(button, { type: "button", title: each.name, onclick: () => this.onOpen(each.key) });
    button.append(Object.assign(new Image(), { alt: "" }), document.createElement("span"));
    item.append(button);
    this.list.append(item);
    this.items.set(each.key, item);
    return item;
  }

  #update(item, each, isOpen) {
    const button = item.firstChild, [image, line] = button.children, picture = each.record?.preview?.image ?? each.photo;
    const text = lineOf(each);
    if (line.textContent !== text) line.textContent = text;
    item.dataset.state = each.problem ? "failed" : each.record ? "done" : "waiting";
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
  return textOf(each) || "Decorative";
}
