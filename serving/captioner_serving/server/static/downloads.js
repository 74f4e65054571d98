// What a visitor may take home: the pictures, the data, and the sentence as alt text.
import { at } from "./work.js";

export class Downloads {
  // say shows a short message, also to screen readers.
  constructor(root, say) {
    Object.assign(this, { root, say });
    this.links = [...root.querySelectorAll("[data-picture]")];
    for (const anchor of this.links) {
      anchor.onclick = (event) => { event.preventDefault(); this.#save(anchor); };
    }
    root.querySelector(".copy").onclick = () => this.#copy();
  }

  // The links for a value, with the word and the look that are on the photo.
  update(value, word, look) {
    this.value = value;
    const query = new URLSearchParams({
      sentence: value.sentence, word, smooth: look.smooth, strength: look.strength, colors: look.colors,
      ...(value.head ? { head: value.head } : {}),
    });
    for (const anchor of this.links) {
      const picture = anchor.dataset.picture, [kind, suffix] = picture.split(".");
      anchor.href = at(`captions/${value.token}/${picture}?${query}`);
      const part = kind === "overlay" ? value.words[word]?.text ?? "" : kind;
      anchor.download = `${value.name}-${part}.${suffix}`;
    }
    const json = this.root.querySelector(".json");
    json.href = "data:application/json;charset=utf-8," + encodeURIComponent(JSON.stringify(value.record));
    json.download = value.name + ".json";
  }

  // A link whose photo has been deleted meanwhile says so, instead of saving an error as a picture.
  async #save({ href, download }) {
    this.say("Drawing…");
    const response = await fetch(href).catch(() => null);
    if (!response?.ok) {
      const problem = await response?.json().catch(() => null);
      return this.say(problem ? `${problem.title}: ${problem.detail}.` : "The server does not answer.");
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = download;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    this.say("Saved " + download);
  }

  async #copy() {
    const { caption } = this.value;
    const text = caption.charAt(0).toUpperCase() + caption.slice(1) + ".";
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // no clipboard without https, or without leave
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    this.say("Copied: " + text);
  }
}
