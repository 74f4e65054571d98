// What is known of a word, in words; and what those mean: a touch on a dotted term says it, another
// closes it.
import { likely, percent, placeOf } from "./sentence.js";

const MEANINGS = {
  trust: "How likely the word is right: that one of five people who describe the photo says it, or a synonym. Below 50 % "
    + "it is doubtful, and underlined in dashes: it may be wrong.",
  sure: "How likely the model found this word, given the photo and the words before it. A small number "
    + "can still be the best of thousands of words.",
  looked: "Where most of the model's attention lay when it chose the word. The colours on the photo show all of it.",
  drew: "How much the choice of the word drew on what was seen there, and not only on the words already said. "
    + "Words such as “of” need little of it.",
  effect: "How much less likely the word becomes when the places that it looked at are hidden, beyond what hiding "
    + "as many other places does. Below 5 % they did not matter: the model finds the word in the rest of the photo, or in "
    + "the words before it. That does not make it wrong.",
  heat: "Colour (with Spotlight, light) begins where a place had more than an even share of the attention, and is full at eight times "
    + "that share. The scale is the same for every word and every photo, so that two pictures can be compared.",
};

// The attention of a word's one head, from 1, or the mean of all; undefined where the model has none.
export function attentionOf({ attention }, head) {
  return attention && head ? { ...attention, weights: attention.heads[head - 1] } : attention;
}

// What is known of a word of a record: pairs of a term and its text.
export function facts(word, head) {
  const attention = attentionOf(word, head), known = [];
  if (word.trust !== undefined) known.push(["trust", (word.doubtful ? "doubtful, " : "") + likely(word.trust) + " likely right"]);
  known.push(["sure", "probability " + percent(word.probability)]);
  if (attention) known.push(["looked", "focus: " + placeOf(attention)]);
  if (word.gate !== undefined) known.push(["drew", "visual " + percent(word.gate)]);
  if (word.effect !== undefined) {
    const lost = 1 - Math.exp(-word.effect);
    known.push(["effect", word.effect < 0.05 ? "also visible elsewhere" : percent(lost) + " less likely when this area is hidden"]);
  }
  return known;
}

export function term(name, text) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "term", textContent: text, ariaExpanded: "false" });
  button.dataset.term = name;
  return button;
}

// Every [data-term] in `root` opens its meaning in the .meaning that follows its line. Gives what
// closes them.
export function explainTerms(root) {
  const close = () => {
    for (const box of root.querySelectorAll(".meaning")) box.replaceChildren();
    for (const each of root.querySelectorAll("[data-term]")) each.ariaExpanded = "false";
  };
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-term]");
    if (!button) return;
    const open = button.ariaExpanded === "true";
    close();
    if (open) return;
    button.ariaExpanded = "true";
    button.closest(".explained").querySelector(".meaning").textContent = MEANINGS[button.dataset.term];
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  return close;
}
