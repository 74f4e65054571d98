// The caption as a row of words, for pointer, touch and arrow keys. The word whose heat is shown is
// outlined; Play shows one word after another.
export const percent = (value) => Math.round(100 * value) + " %";

// A trust, rounded down, so that a value below a limit does not appear to reach it.
export const likely = (trust) => trust < 0.01 ? "less than 1 %" : Math.floor(100 * trust + 1e-9) + " %";

const PLAY = "M4 2.5v11l9-5.5z", PAUSE = "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z";

const PLACES = [["top left", "top", "top right"], ["left", "middle", "right"], ["bottom left", "bottom", "bottom right"]];

// The part of the photo, out of 3 x 3, with most of a word's attention; like place_of in mcp.py.
export function placeOf({ rows, columns, box, weights }) {
  const [left, top, right, bottom] = box, shares = [[0, 0, 0], [0, 0, 0], [0, 0, 0]];
  const overlap = (from, to, third) => Math.max(0, Math.min(to, (third + 1) / 3) - Math.max(from, third / 3)) / (to - from);
  weights.forEach((weight, at) => {
    const row = Math.floor(at / columns), column = at % columns;
    const y = [row, row + 1].map((edge) => top + ((bottom - top) * edge) / rows);
    const x = [column, column + 1].map((edge) => left + ((right - left) * edge) / columns);
    for (const r of [0, 1, 2]) for (const c of [0, 1, 2]) shares[r][c] += weight * overlap(...y, r) * overlap(...x, c);
  });
  const most = Math.max(...shares.flat());
  if (most < 2 / 9) return "spread over the photo";  // less than twice an even share
  const row = shares.findIndex((line) => line.includes(most));
  return PLACES[row][shares[row].indexOf(most)];
}

export class Sentence {
  // onShow(index) is called with the word to show, -1 for none.
  constructor(row, play, onShow) {
    Object.assign(this, { row, play, onShow });
    this.current = this.pinned = -1;  // `pinned` is shown again when the pointer leaves
    this.timer = null;
    row.onpointerleave = () => this.#rest();
    row.onfocusout = (event) => { if (!row.contains(event.relatedTarget)) this.#rest(); };
    row.onkeydown = (event) => this.#walk(event);
    play.onclick = () => (this.timer ? (this.stop(), this.show(this.pinned)) : this.#run());
  }

  get buttons() { return [...this.row.children]; }

  // words: { text, tint, doubtful, description }; tint is 0 to 1, description is for screen readers.
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
    button.style.setProperty("--p", word.tint);
    button.setAttribute("aria-label", word.text + ", " + word.description);
    button.onpointerenter = (event) => {
      if (event.pointerType !== "mouse" || this.timer) return;
      if (this.row.contains(document.activeElement)) button.focus({ preventScroll: true });
      this.show(index);
    };
    button.onfocus = () => { if (!this.timer) this.show(index); };
    button.onclick = () => { this.stop(); this.pin(this.pinned === index ? -1 : index); };
    return button;
  }

  // The pointer or the focus has left: show the pinned word again.
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
