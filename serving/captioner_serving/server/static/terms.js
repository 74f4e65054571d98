// The numbers of a word. Each has a tooltip, which a click or tap also shows in the page.
import { makeButton } from "./record.js";
import { likely, percent, placeOf } from "./sentence.js";

const MEANINGS = {
  trust: "How likely it is that at least one of five people would use this word or a synonym for this photo; the first noun is dashed below 75 %, other words below 55 %, and at most two of a caption.",
  unknown: "This model does not estimate trust, so wrong words are not marked.",
  probability: "The probability of this word, given the photo and the words before it.",
  focus: "The part of the photo with most of the word's attention; the colours on the photo show all of its attention.",
  visual: "How much the word depends on the photo, rather than on the words before it.",
  effect: "How much less likely the word becomes when the area it looked at is hidden, compared with hiding an equally large area elsewhere; below 5 %, the word is also visible elsewhere and may still be right.",
  heat: "Colour (light with Spotlight) starts above an even share of attention and is full at eight times that share.",
};

// Pairs of a term and its text. hasTrust: the model estimates trust.
export function facts(word, hasTrust) {
  const { attention } = word, pairs = [];
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
  const button = Object.assign(makeButton("term", text, null), { title: MEANINGS[name], ariaExpanded: "false" });
  button.dataset.term = name;
  return button;
}

// Let every [data-term] in `root` open its meaning below its line. Returns a function that closes all.
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
