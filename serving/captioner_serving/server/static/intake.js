// Add photos: choose files, take a picture on a phone, paste, drag and drop, or a sample.

// The URL in a pasted text, or null.
const urlIn = (text) => (/^https?:\/\/\S+$/i.test(text.trim()) && URL.canParse(text.trim()) ? text.trim() : null);

// onFiles is called with files, onSample with the name of a sample, onUrl with a pasted URL; null if URLs are not
// allowed. Returns { explain }, which shows a message below the buttons.
export function listen(element, onFiles, onSample, onUrl = null) {
  const find = (selector) => element.querySelector(selector);
  const file = find(".file"), snap = find(".snap"), zone = find(".zone");

  const explain = (text) => { find(".reason").textContent = text; };

  for (const input of [file, snap]) {
    input.onchange = () => { onFiles([...input.files]); input.value = ""; };
  }
  find(".choose").onclick = () => file.click();
  find(".take").onclick = () => snap.click();  // opens the camera app
  find(".samples").onclick = (event) => {
    const button = event.target.closest("[data-sample]");
    if (button) onSample(button.dataset.sample);
  };

  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    const url = urlIn(event.clipboardData?.getData("text") ?? "");
    if (files.length) { event.preventDefault(); onFiles(files); }
    else if (url && onUrl && !event.target.closest?.("input, textarea")) onUrl(url);
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
    event.preventDefault();  // otherwise the browser opens the photo
    filesOf(event.dataTransfer).then(onFiles);
  });
  return { explain };
}

// The files of a drop, and the photos in its folders with their `path`.
async function filesOf({ items, files }) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()), folders = entries.filter((entry) => entry?.isDirectory);
  if (!folders.length) return [...files];
  const loose = [...files].filter(({ name }) => !folders.some((folder) => folder.name === name));
  return [...loose, ...(await Promise.all(folders.map(photosIn))).flat()];
}

async function photosIn(entry) {
  if (entry.isFile) {
    const file = await new Promise((done, failed) => entry.file(done, failed));
    return /^image\//.test(file.type) || /\.(heic|heif|avif|tiff?)$/i.test(file.name) ? [Object.assign(file, { path: entry.fullPath.slice(1) })] : [];
  }
  const reader = entry.createReader(), entries = [];
  let part;  // at most 100 entries
  do entries.push(...part = await new Promise((done, failed) => reader.readEntries(done, failed))); while (part.length);
  return (await Promise.all(entries.map(photosIn))).flat();
}
