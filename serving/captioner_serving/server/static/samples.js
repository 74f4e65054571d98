// A click on a sample goes to the server with its name. `element` and `trigger` are gr.HTML's.
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-sample]");
  if (button) trigger("click", { sample: button.dataset.sample });
});
