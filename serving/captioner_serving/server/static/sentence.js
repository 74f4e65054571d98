// The caption as a row of words: pointed at, tapped, walked through with the arrow keys, or played.
// One word is outlined at a time: the one whose heat is on the photo.
export const percent = (value) => Math.round(100 * value) + " %";

// A trust, rounded down: what is below a bound must not be said to be at it.
export const likely = (trust) => trust < 0.01 ? "less than 1 %" : Math.floor(100 * trust + 1e-9) + " %";

const PLAY = "M4 2.5v11l9-5.5z", PAUSE = "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z";

// Where the word's attention is strongest, in words, for those who do not see the heat.
export function placeOf({ rows, columns, weights }) {
  const best = weights.indexOf(Math.max(...weights));
  if (weights[best] * weights.length < 2) return "nowhere in particular";
  const third = (at, count) => Math.min(2, Math.floor((3 * (at + 0.5)) / count));
  const row = ["upper", "middle", "lower"][third(Math.floor(best / columns), rows)];
  const column = ["left", "", "right"][third(best % columns, columns)];
  if (row === "middle") return column ? "at the " + column : "in the middle";
  return column ? "at the " + row + " " + column : { upper: "at the top", lower: "at the bottom" }[row];
}

export class Sentence {
  // onShow is told the word to show, -1 for none.
  constructor(row, play, onShow) {
    Object.assign(this, { row, play, onShow });
    this.current = this.pinned = -1;  // shown; and shown again when the pointer leaves
    this.timer = null;
    row.onpointerleave = () => this.#rest();
    row.onfocusout = (event) => { if (!row.contains(event.relatedTarget)) this.#rest(); };
    row.onkeydown = (event) => this.#walk(event);
    play.onclick = () => (this.timer ? (this.stop(), this.show(this.pinned)) : this.#run());
  }

  get buttons() { return [...this.row.children]; }

  // words: { text, probability, doubtful, told }, the last what a screen reader says of the word.
  set(words) {
    this.stop();
    this.pinned = this.current = -1;
    this.row.replaceChildren(...words.map((word, index) => this.#make(word, index)));
  }

  show(index) {
    this.current = index;
    this.buttons.forEach((button, i) => {
      button.classList.toggle("current", i === index);
      button.setAttribute("aria-pressed", i === this.pinned);
      button.tabIndex = i === Math.max(0, index) ? 0 : -1;
    });
    this.onShow(index);
  }

  pin(index) {
    this.pinned = index;
    this.show(index);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.#label("Play", PLAY);
  }

  #make(word, index) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = word.doubtful ? "word doubtful" : "word";
    button.textContent = word.text;
    button.style.setProperty("--p", word.probability);
    button.setAttribute("aria-label", word.text + ", " + word.told);
    button.onpointerenter = (event) => {
      if (event.pointerType !== "mouse" || this.timer) return;
      if (this.row.contains(document.activeElement)) button.focus({ preventScroll: true });
      this.show(index);
    };
    button.onfocus = () => { if (!this.timer) this.show(index); };
    button.onclick = () => { this.stop(); this.pin(this.pinned === index ? -1 : index); };
    return button;
  }

  // The pointer or the focus has left: back to the word that was chosen, if one was.
  #rest() {
    if (this.timer) return;
    const focused = this.buttons.indexOf(document.activeElement);
    if (focused >= 0 && this.pinned >= 0) this.buttons[this.pinned].focus({ preventScroll: true });
    this.show(this.pinned >= 0 ? this.pinned : focused);
  }

  #walk(event) {
    const last = this.buttons.length - 1;
    const on = getComputedStyle(this.row).direction === "rtl" ? -1 : 1;
    const to = { ArrowRight: this.current + on, ArrowLeft: this.current - on, Home: 0, End: last }[event.key];
    if (event.key === "Escape") { this.stop(); this.pin(-1); event.preventDefault(); }
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.stop();
    this.buttons[(to + last + 1) % (last + 1)].focus();
  }

  #run() {
    this.#label("Pause", PAUSE);
    let next = 0;
    const step = () => {
      if (next >= this.buttons.length) { this.stop(); return this.show(this.pinned); }
      this.show(next++);
    };
    this.timer = setInterval(step, 850);
    step();
  }

  #label(text, path) {
    this.play.setAttribute("aria-pressed", this.timer !== null || text === "Pause");
    this.play.querySelector("span").textContent = text;
    this.play.querySelector("path").setAttribute("d", path);
  }
}
