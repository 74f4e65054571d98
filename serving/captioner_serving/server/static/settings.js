// The search settings.

// Connect the form to `settings`, which it changes in place. again() captions the photo again. Returns a function that
// updates the form.
export function listenToSettings(element, settings, props, again) {
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
  box.onchange = () => { settings.check_attention = box.checked; again(); };
  beam.max = props.most;
  captions.max = Math.min(10, props.most);
  for (const slider of sliders) {
    slider.oninput = () => {
      settings[slider.name] = +slider.value;
      // At most as many sentences as beams.
      if (slider === beam) settings.captions = Math.min(settings.captions, settings.beam_size);
      else settings.beam_size = Math.max(settings.captions, settings.beam_size);
      show();
    };
    slider.onchange = again;
  }
  show();
  return show;
}

// Stored settings that this server supports, and defaults for the rest: the model may have changed.
export function supported(kept, { settings, styles }) {
  const values = Object.keys(settings).map((name) => [name, kept?.[name] ?? settings[name]]);
  return { ...Object.fromEntries(values), ...(styles.includes(kept?.style) ? {} : { style: settings.style }) };
}
