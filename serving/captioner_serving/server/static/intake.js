// Where photos come in: chosen, taken, pasted, or dropped anywhere on the page; and the samples.
import { openCamera } from "./camera.js";
import { caption, fail, work } from "./work.js";
import { problems } from "./problems.js";

export function start(element, props) {
  const find = (selector) => element.querySelector(selector);
  const reason = find(".reason"), file = find(".file"), snap = find(".snap"), zone = find(".zone");

  // Why something cannot be done stays beside its button, and leaves the caption alone.
  const explain = (text) => { reason.textContent = text; };
  work.addEventListener("change", () => explain(""));

  async function take(files) {
    if (files.length > 1) return fail(problems.many(files.length));
    const [photo] = files;
    if (!photo) return;
    if (photo.size > props.max_upload) return fail(problems.tooLarge(photo.name, props.max_upload));
    try {
      await photo.slice(0, 1).arrayBuffer();
    } catch {
      return fail(problems.unreadable(photo.name));
    }
    caption({ file: photo });
  }

  for (const input of [file, snap]) {
    input.onchange = () => { take([...input.files]); input.value = ""; };
  }
  find(".choose").onclick = () => file.click();
  find(".take").onclick = async () => {
    // A phone's own camera works everywhere, over plain http too.
    if (matchMedia("(pointer: coarse)").matches) return snap.click();
    try {
      const photo = await openCamera(find("dialog"));
      if (photo) take([photo]);
    } catch (error) {
      explain(error.message);
    }
  };
  find(".paste").onclick = async () => {
    if (!navigator.clipboard?.read) return explain(problems.noClipboard());
    try {
      const photo = await readClipboard();
      if (photo) take([photo]);
      else explain("There is no picture in the clipboard: copy one first.");
    } catch {
      explain(problems.clipboardRefused());
    }
  };
  find(".samples").onclick = (event) => {
    const button = event.target.closest("[data-sample]");
    if (button) caption({ sample: button.dataset.sample, picture: button.querySelector("img").src });
  };

  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) { event.preventDefault(); take(files); }
  });
  addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    zone.classList.add("dropping");
    event.preventDefault();
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) zone.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    zone.classList.remove("dropping");
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();  // or the browser would leave the page to show the photo
    take([...event.dataTransfer.files]);
  });
}

async function readClipboard() {
  for (const item of await navigator.clipboard.read()) {
    const type = item.types.find((name) => name.startsWith("image/"));
    if (type) return new File([await item.getType(type)], "pasted." + type.split("/")[1], { type });
  }
  return null;
}
