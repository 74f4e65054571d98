// What the page's numbers and colours mean: a touch on a dotted term says it, another closes it.
const MEANINGS = {
  sure: "How likely the model found this word, given the photo and the words before it. A small number "
    + "can still be the best of thousands of words.",
  looked: "Where most of the model's attention lay when it chose the word. The colours on the photo show all of it.",
  drew: "How much the choice of the word drew on what was seen there, and not only on the words already said. "
    + "Words such as “of” need little of it.",
  effect: "How much less likely the word becomes when the places that it looked at are hidden, beyond what hiding "
    + "as many other places does. A word that loses less than 5 % counts as guessed.",
  average: "How sure the model was of each word of the sentence, on average. "
    + "The sentences are in its own order, which also counts their length.",
  heat: "Colour (with Spotlight, light) begins where a place had more than an even share of the attention, and is full at eight times "
    + "that share. The scale is the same for every word and every photo, so that two pictures can be compared.",
};

export function term(name, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "term";
  button.dataset.term = name;
  button.textContent = text;
  button.setAttribute("aria-expanded", "false");
  return button;
}

// Every [data-term] in `root` opens its meaning in the .meaning that follows its line.
export function explainTerms(root) {
  const close = () => {
    for (const box of root.querySelectorAll(".meaning")) box.replaceChildren();
    for (const each of root.querySelectorAll("[data-term]")) each.setAttribute("aria-expanded", "false");
  };
  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-term]");
    if (!button) return;
    const open = button.getAttribute("aria-expanded") === "true";
    close();
    if (open) return;
    button.setAttribute("aria-expanded", "true");
    button.closest(".explained").querySelector(".meaning").textContent = MEANINGS[button.dataset.term];
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  return close;
}
