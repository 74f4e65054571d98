// The search settings: a form, and settings that an earlier visit stored.
// Connect the form to `settings`, which it changes in place. again() captions anew, check() measures the effect of each word.
// Returns a function that shows the settings.
export function listenToSettings(element, settings, props, again, check) {
  const sliders = [...element.querySelectorAll("input[type=range]")], [beam, captions] = sliders;
  const box = element.querySelector(".check input"), style = element.querySelector("select");
  const show = () => {
    for (const slider of sliders) {
      slider.value = settings[slider.name] ?? 0;
      element.querySelector("b." + slider.name).textContent = slider.value;
    }
    box.checked = settings.check_attention;
    style.value = settings.style;
  };
  style.append(...props.styles.map((name) => new Option(name, name)));
  element.querySelector(".styles").hidden = props.styles.length < 2;
  element.querySelector(".trusts").hidden = !("minimum_trust" in props.settings);
  style.onchange = () => { settings.style = style.value; again(); };
  box.onchange = () => { settings.check_attention = box.checked; check(); };
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
  show();
  return show;
}

// The stored settings that this server has, and its defaults for the rest: its model may have changed.
export function supported(kept, { settings, styles }) {
  const values = Object.keys(settings).map((name) => [name, kept?.[name] ?? settings[name]]);
  return { ...Object.fromEntries(values), ...(styles.includes(kept?.style) ? {} : { style: settings.style }) };
}
