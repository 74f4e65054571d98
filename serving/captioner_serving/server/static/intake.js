// Where photos come in: chosen, taken, pasted, or dropped anywhere on the page; and the samples.
const CAMERA = {
  NotAllowedError: "The browser was not allowed to use the camera: allow it beside the page's address.",
  NotFoundError: "This machine has no camera.",
  NotReadableError: "Another program is using the camera: close it there first.",
};
const NO_CAMERA = "Over plain http a browser gives its camera to pages of its own machine only. "
  + "Open this page over https, or take the photo with the camera's own program and choose the file.";
const NO_CLIPBOARD = "Over plain http a browser lets no button read the clipboard. "
  + "Press Ctrl+V (on a Mac ⌘V) instead: that always works.";
const CLIPBOARD_REFUSED = "The browser did not let the page read the clipboard. "
  + "Allow it beside the page's address, or press Ctrl+V (on a Mac ⌘V).";

// The address of a photo that was copied as text, or null.
const addressIn = (text) => (/^https?:\/\/\S+$/i.test(text.trim()) && URL.canParse(text.trim()) ? text.trim() : null);

// onFiles gets what was chosen, onSample a sample's name, onAddress a photo's address that was pasted;
// null where nobody fetches it. Gives what says, beside the buttons, why something cannot be done.
export function listen(element, onFiles, onSample, onAddress = null) {
  const find = (selector) => element.querySelector(selector);
  const file = find(".file"), snap = find(".snap"), zone = find(".zone");

  // Why something cannot be done stays beside its button, and leaves the caption alone.
  const explain = (text) => { find(".reason").textContent = text; };

  for (const input of [file, snap]) {
    input.onchange = () => { onFiles([...input.files]); input.value = ""; };
  }
  find(".choose").onclick = () => file.click();
  find(".take").onclick = async () => {
    // A phone's own camera works everywhere, over plain http too.
    if (matchMedia("(pointer: coarse)").matches) return snap.click();
    try {
      const photo = await openCamera(find("dialog"));
      if (photo) onFiles([photo]);
    } catch (error) {
      explain(error.message);
    }
  };
  find(".paste").onclick = async () => {
    if (!navigator.clipboard?.read) return explain(NO_CLIPBOARD);
    try {
      const { photo, text } = await readClipboard(), address = onAddress && addressIn(text);
      if (photo) onFiles([photo]);
      else if (address) onAddress(address);
      else explain(`There is no picture${onAddress ? ", nor the address of one," : ""} in the clipboard: copy one first.`);
    } catch {
      explain(CLIPBOARD_REFUSED);
    }
  };
  find(".samples").onclick = (event) => {
    const button = event.target.closest("[data-sample]");
    if (button) onSample(button.dataset.sample);
  };

  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    const address = addressIn(event.clipboardData?.getData("text") ?? "");
    if (files.length) { event.preventDefault(); onFiles(files); }
    else if (address && onAddress && !event.target.closest?.("input, textarea")) onAddress(address);
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
    onFiles([...event.dataTransfer.files]);
  });
  return { explain };
}

async function readClipboard() {
  let text = "";
  for (const item of await navigator.clipboard.read()) {
    const type = item.types.find((name) => name.startsWith("image/"));
    if (type) return { photo: new File([await item.getType(type)], "pasted." + type.split("/")[1], { type }), text };
    if (item.types.includes("text/plain")) text = await (await item.getType("text/plain")).text();
  }
  return { photo: null, text };
}

// The camera of this machine, in a dialog: a photo of what it sees, or null.
async function openCamera(dialog) {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error(NO_CAMERA);
  const video = dialog.querySelector("video");
  const stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1920 } } }).catch((error) => {
    throw new Error(CAMERA[error.name] ?? "The camera cannot be used: " + error.message);
  });
  video.srcObject = stream;
  dialog.returnValue = "";
  dialog.querySelector(".shoot").onclick = () => { if (video.videoWidth) dialog.close("shoot"); };
  dialog.querySelector(".close").onclick = () => dialog.close();
  dialog.showModal();
  try {
    await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
    return dialog.returnValue === "shoot" ? await photograph(video) : null;
  } finally {
    for (const track of stream.getTracks()) track.stop();
    video.srcObject = null;
  }
}

async function photograph(video) {
  const canvas = Object.assign(document.createElement("canvas"), { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  return new File([blob], "camera.jpg", { type: "image/jpeg" });
}
