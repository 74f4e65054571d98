// The settings of the search, and what to know of the model.
import { again, settings, work } from "./work.js";

export function start(element, props) {
  element.querySelector(".limits").textContent = props.value;
  const sliders = [...element.querySelectorAll("input[type=range]")], check = element.querySelector(".check input");
  const style = element.querySelector("select");
  const [beam, captions] = sliders;
  const show = () => {
    for (const slider of sliders) {
      slider.value = settings[slider.name];
      element.querySelector("b." + slider.name).textContent = slider.value;
    }
    check.checked = settings.check_attention;
    style.value = settings.style;
  };
  style.append(...props.styles.map((name) => new Option(name, name)));
  element.querySelector(".styles").hidden = props.styles.length < 2;
  style.onchange = () => {
    settings.style = style.value;
    again();
  };
  check.onchange = () => {
    settings.check_attention = check.checked;
    again();
  };
  beam.max = props.most;
  captions.max = Math.min(10, props.most);
  for (const slider of sliders) {
    slider.oninput = () => {
      settings[slider.name] = +slider.value;
      // No more sentences than are followed.
      if (slider === beam) settings.captions = Math.min(settings.captions, settings.beam_size);
      else settings.beam_size = Math.max(settings.captions, settings.beam_size);
      show();
    };
    slider.onchange = again;
  }
  work.addEventListener("change", show);
  show();
}
