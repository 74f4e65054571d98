// The numbers of a word as terms. Each has a tooltip; a click or tap shows it in the page.
import { likely, percent, placeOf } from "./sentence.js";

const MEANINGS = {
  trust: "How likely one of five people who describe the photo would use this word or a synonym; doubtful words are underlined in dashes.",
  unknown: "This model has no estimate of trust, so a wrong word has no mark.",
  probability: "The probability that the model gave this word, given the photo and the words before it.",
  focus: "The part of the photo with most of the word's attention; the colours on the photo show all of it.",
  visual: "How much the choice of the word drew on the photo rather than on the words before it.",
  effect: "How much less likely the word becomes when the area it looked at is hidden, compared with hiding as large an area elsewhere; below 5 % the word is visible elsewhere too, which does not make it wrong.",
  heat: "Colour (light with Spotlight) begins above an even share of attention and is full at eight times that share, for every word and photo.",
};

// The attention of a word's one head, from 1, or the mean of all; undefined where the model has none.
export function attentionOf({ attention }, head) {
  return attention && head ? { ...attention, weights: attention.heads[head - 1] } : attention;
}

// Pairs of a term and its text. hasTrust: whether the model estimates trust.
export function facts(word, head, hasTrust) {
  const attention = attentionOf(word, head), pairs = [];
  if (!hasTrust) pairs.push(["unknown", "trust unknown"]);
  if (word.trust !== undefined) pairs.push(["trust", (word.doubtful ? "doubtful, " : "") + likely(word.trust) + " likely right"]);
  pairs.push(["probability", "probability " + percent(word.probability)]);
  if (attention) pairs.push(["focus", "focus: " + placeOf(attention)]);
  if (word.gate !== undefined) pairs.push(["visual", "visual " + percent(word.gate)]);
  if (word.effect !== undefined) {
    const lost = percent(1 - Math.exp(-word.effect));
    pairs.push(["effect", word.effect < 0.05 ? "also visible elsewhere" : lost + " less likely when this area is hidden"]);
  }
  return pairs;
}

export function term(name, text) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "term", textContent: text, title: MEANINGS[name], ariaExpanded: "false" });
  button.dataset.term = name;
  return button;
}

// Every [data-term] in `root` opens its meaning in the .meaning below its line. Returns a function that closes them.
export function explainTerms(root) {
  const close = () => {
    for (const box of root.querySelectorAll(".meaning")) box.replaceChildren();
    for (const button of root.querySelectorAll("[data-term]")) button.ariaExpanded = "false";
  };
  for (const button of root.querySelectorAll("[data-term]")) button.title = MEANINGS[button.dataset.term];
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-term]");
    if (!button) return;
    const isOpen = button.ariaExpanded === "true";
    close();
    if (isOpen) return;
    button.ariaExpanded = "true";
    button.closest(".explained").querySelector(".meaning").textContent = MEANINGS[button.dataset.term];
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  return close;
}
