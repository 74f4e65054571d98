// The numbers of a word, and what they mean.
import { make } from "./record.js";
import { likely, percent, placeOf } from "./sentence.js";

export const MEANINGS = {
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

// A term whose meaning opens below its line; only one is open at a time.
export function term(name, text) {
  const meaning = MEANINGS[name], element = make("details", { className: "term", name: "terms" });
  element.append(make("summary", { textContent: text, title: meaning }), make("p", { className: "meaning" }, meaning));
  element.dataset.term = name;
  return element;
}
