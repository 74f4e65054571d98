// The photo with its caption: what is shown while it is empty, waits, has failed, and is there.
import { Downloads } from "./downloads.js";
import { colorAt, Heat } from "./heat.js";
import { explainTerms, term } from "./meanings.js";
import { percent, placeOf, Sentence } from "./sentence.js";
import { problems } from "./problems.js";
import { again, ask, choose, fail, open, photoOf, work } from "./work.js";

// What a visitor has to see of each state without scrolling.
const ENDS = { waiting: ".work", failed: ".failure", shown: ".sentence" };
const touch = matchMedia("(hover: none)");

export function start(element, props) {
  const find = (selector) => element.querySelector(selector);
  const viewer = find(".viewer"), photo = find(".photo"), about = find(".about"), status = find('[role="status"]');
  const strength = find(".strength"), colors = find(".colors"), smooth = find(".smooth");
  const look = { strength: props.default_strength, colors: props.default_colors, smooth: true };
  let value = null;  // what is shown
  let seen = null;   // the address of the photo on the stage
  let before = null; // what was shown before, with the word that was chosen in it

  const heat = new Heat(find(".heat"), photo, { ...props, look });
  const downloads = new Downloads(element, (text) => { status.textContent = about.textContent = text; });
  const sentence = new Sentence(find(".sentence"), find(".play"), showWord);
  const closeMeanings = explainTerms(element);

  function showWord(index) {
    heat.show(index);
    if (!value) return;
    if (index < 0) {
      about.textContent = (touch.matches ? "Tap" : "Point at") + " a word, or press Play. "
        + "The stronger the colour behind a word, the surer the model was.";
    } else {
      const name = document.createElement("b");
      name.textContent = value.words[index].text;
      about.replaceChildren(name, ...facts(value, index).map(([key, text]) => term(key, text)));
    }
    downloads.update(value, Math.max(0, index), look);
  }

  // The photo's new address; a picture that the browser cannot show waits for the server's.
  async function stage(address) {
    if (seen !== address) {
      seen = address;
      photo.src = address;
    }
    const ready = await photo.decode().then(() => true, () => false);
    if (seen === address) viewer.toggleAttribute("data-unseen", !ready);
    return ready;
  }

  const states = {
    empty() {
      find(".invitation").textContent = touch.matches ? "Choose a photo, or take one." : "Drop a photo here, or choose one.";
    },
    waiting(state) {
      find(".unseen").textContent = "Your browser cannot show " + (state.name || "this file") + " itself: its picture comes with the caption.";
      const text = phaseOf(state);
      find(".phase").textContent = text;
      if (state.phase !== "sending" || !state.share) status.textContent = text;
      if (state.picture) stage(state.picture);
      else { seen = null; photo.removeAttribute("src"); }
      photo.alt = "";
    },
    failed({ problem }) {
      const title = document.createElement("strong"), retry = document.createElement("button");
      title.textContent = problem.title;
      retry.textContent = "Try again";
      retry.type = "button";
      retry.className = "control retry";
      retry.onclick = again;
      const detail = problem.detail.replace(/\.?$/, ".");
      find(".failure").replaceChildren(title, detail, ...(problem.again ? [retry] : []));
      status.textContent = "";
    },
    async shown(state) {
      const mine = value = state.value;
      viewer.toggleAttribute("data-unfamiliar", value.unfamiliar);
      const same = before?.token === value.token && before.sentence === value.sentence;  // another head of it
      const word = same ? before.word : value.first;
      before = { token: value.token, sentence: value.sentence, word };
      sentence.set(value.words.map((word, index) => ({ ...word, told: tell(value, index) })));
      find(".guesses").textContent = value.note ? "In dashed italics, " + value.note + "." : "";
      listSentences();
      listHeads();
      showWord(-1);
      photo.alt = value.caption;
      status.textContent = "Caption: " + value.caption + (value.unfamiliar ? ". " + find(".unlike").textContent : "");
      const ready = await stage(photoOf(value));
      if (value !== mine) return;
      if (!ready) return tellWhyUnseen(mine);
      if (!(await heat.load(value)) || value !== mine) return;
      sentence.pin(word);
    },
  };

  // An image that failed does not say why: the server is asked for it once more.
  async function tellWhyUnseen(mine) {
    seen = null;
    const problem = await ask(photoOf(mine)).then(problems.unseen, (problem) => problem);
    if (value === mine) fail(problem);
  }

  function listSentences() {
    const list = find(".sentences"), { sentences, sentence: chosen } = value;
    find(".others").classList.toggle("any", sentences.length > 1);
    find(".hint").textContent = (touch.matches ? "Tap" : "Click") + " one to see its words.";
    if (list.dataset.token !== value.token) {
      list.dataset.token = value.token;
      list.replaceChildren(...sentences.map((each, number) => {
        const item = document.createElement("li"), button = document.createElement("button");
        button.type = "button";
        button.textContent = each.text;
        button.onclick = () => { choose(number, value.head); };
        item.append(button, term("average", percent(each.average) + " a word"));
        return item;
      }));
    }
    [...list.children].forEach((item, number) => item.firstChild.setAttribute("aria-pressed", number === chosen));
  }

  function listHeads() {
    const list = find(".head");
    find(".heads").classList.toggle("any", value.heads > 1);
    list.replaceChildren(new Option("Mean", ""), ...Array.from({ length: value.heads }, (_, i) => new Option(i + 1, i + 1)));
    list.value = value.head ?? "";
    list.onchange = () => choose(value.sentence, +list.value || null);
  }

  work.addEventListener("change", ({ detail }) => {
    const state = viewer.dataset.state;
    if (before) before.word = sentence.pinned;
    value = null;
    closeMeanings();
    if (detail.kind !== "shown" || state !== "shown") heat.clear();
    viewer.dataset.state = detail.kind;
    if (detail.kind !== "waiting") viewer.removeAttribute("data-unseen");
    viewer.setAttribute("aria-busy", detail.kind === "waiting");
    sentence.stop();
    states[detail.kind](detail);
    if (state !== detail.kind && detail.kind in ENDS) reveal(detail.kind === "failed" ? document.body : viewer, find(ENDS[detail.kind]));
  });

  const drawScale = () => {
    const steps = look.colors === "spotlight" ? ["#000", "#fff"]
      : Array.from({ length: 9 }, (_, i) => `rgb(${colorAt(props.scales[look.colors], Math.round((255 * i) / 8), props.blend)})`);
    find(".scale").style.background = `linear-gradient(90deg, ${steps})`;
  };
  colors.append(...props.colors.map((name) => new Option(name.charAt(0).toUpperCase() + name.slice(1), name)));
  colors.value = look.colors;
  strength.value = 100 * look.strength;
  for (const control of [strength, colors, smooth]) {
    control.oninput = () => {
      Object.assign(look, { strength: strength.value / 100, colors: colors.value, smooth: smooth.checked });
      drawScale();
      heat.draw();
      if (value) downloads.update(value, Math.max(0, sentence.current), look);
    };
  }
  drawScale();
  open(props.value, props.settings, props.styles);
}

// What is known of a word: the term that explains it, and its text.
function facts(value, index) {
  const word = value.words[index], { attention } = value.record.words[index];
  const known = [["sure", percent(word.probability) + " sure"]];
  if (attention) {
    const weights = value.head ? attention.heads[value.head - 1] : attention.weights;
    known.push(["looked", "looked " + placeOf({ ...attention, weights })]);
  }
  if (word.gate != null) known.push(["drew", "drew " + percent(word.gate) + " on the photo"]);
  if (word.effect != null) known.push(["effect", unseen(word.effect)]);
  return known;
}

// What a screen reader says of a word.
function tell(value, index) {
  const told = facts(value, index).slice(0, 2).map((fact) => fact[1]);
  return [...told, ...(value.words[index].guessed ? ["guessed"] : [])].join(", ");
}

// The measured effect as the share of its probability that the word loses.
function unseen(effect) {
  const lost = 1 - Math.exp(-effect);
  return lost < 0.005 ? "as likely unseen" : percent(lost) + " less likely unseen";
}

function phaseOf({ phase, share, ahead }) {
  if (phase === "sending") return "Sending the photo" + (share && share < 1 ? ", " + percent(share) : "") + " …";
  if (ahead === 1) return "1 photo comes before this one …";
  if (ahead > 1) return ahead + " photos come before this one …";
  return "Looking at the photo …";
}

// On a small screen the words come to the visitor; a failure comes with the buttons to try another.
function reveal(top, part) {
  const { bottom } = part.getBoundingClientRect();
  if (bottom <= innerHeight && top.getBoundingClientRect().top >= 0) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  top.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
}
