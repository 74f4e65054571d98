// Records: sentences, alt texts, marks and downloads.

// The record with another of its sentences as caption, like Caption.choose.
export function chooseSentence(record, number) {
  const { caption, score, trust, words, doubt, alternatives } = record;
  if (!number) return record;
  const chosen = alternatives[number - 1], rest = alternatives.filter((alternative) => alternative !== chosen);
  return { ...record, trust: undefined, doubt: undefined, ...chosen, alternatives: [{ caption, score, trust, words, doubt }, ...rest] };
}

export const altText = (caption) => caption && caption.charAt(0).toUpperCase() + caption.slice(1) + ".";

// The alt text without a correction; empty if the caption is not trusted.
export const defaultText = (record, caption) => (record.review || record.unfamiliar ? "" : altText(caption));

// A photo of the strip is { name, url, record or problem, sentence, text }. `text` is the visitor's text: "" for a
// decorative picture, undefined if nothing was written.
export const textOf = ({ record, sentence, text }) => text ?? defaultText(record, chooseSentence(record, sentence).caption);

// Marks of a photo that needs review: "failed", "untrusted", "unfamiliar", "doubtful".
export function marksOf({ record, sentence, text, problem }) {
  if (problem) return ["failed"];
  if (!record || text !== undefined) return [];  // the visitor wrote the text
  const { doubt, words } = chooseSentence(record, sentence);
  const is = { untrusted: record.review, unfamiliar: record.unfamiliar, doubtful: doubt || words.some((word) => word.doubtful) };
  return Object.keys(is).filter((mark) => is[mark]);
}

// Photos to review: failures, and photos that have marks or were not opened, until they are accepted.
export const isToReview = (photo) => Boolean(photo.problem || (photo.record && !photo.accepted && (!photo.looked || marksOf(photo).length)));

// The photos of a training set: reviewed, with a caption. Captions without a correction have the model's form.
export const trainable = (photos) => photos.filter((photo) => photo.record && !isToReview(photo) && textOf(photo).trim());
const trainingCaption = ({ record, sentence, text }) => text ?? chooseSentence(record, sentence).caption;

// The two files of a photo in a training set: NUMBER-NAME.jpg (`file`) and NUMBER-NAME.txt.
export function trainingFiles(photo, file, number) {
  const [, stem, suffix] = /^(.*?)(\.[^.]*)?$/.exec(photo.name.replace(/[\\/:*?"<>|\0-\x1f]/g, "_"));
  const name = `${String(number).padStart(3, "0")}-${stem}`, kind = file.type === "image/jpeg" ? ".jpg" : suffix ?? "";
  return [{ name: name + kind, blob: file }, { name: name + ".txt", blob: new Blob([trainingCaption(photo).trim() + "\n"]) }];
}

export function recordOf({ name, url, record, problem, sentence, text }) {
  if (problem) return { image: url ?? name, error: { type: problem.type, title: problem.title, detail: problem.detail } };
  const { preview, ...chosen } = chooseSentence(record, sentence);
  return { ...chosen, image: url ?? name, ...(text === undefined ? {} : { corrected: text }) };
}

const COLUMNS = ["image", "alt", "caption", "score", "trust", "marks", "error"];

// Escape cells that a spreadsheet would run as a formula.
const cellOf = (value) => `"${String(value ?? "").replace(/^(?=[=+\-@\t\r＝＋－＠])/, "'").replaceAll('"', '""')}"`;

function rowOf(photo) {
  const { image, caption, score, trust, error } = recordOf(photo);
  const cells = [image, error ? "" : textOf(photo), caption, score, trust, error ? "" : marksOf(photo).join(" "), error?.detail];
  return cells.map((cell) => (typeof cell === "number" ? cell : cellOf(cell))).join(",");
}

// Formats for downloading all photos, by suffix.
export const FORMATS = {
  jsonl: { type: "application/jsonl", make: (photos) => photos.map((photo) => JSON.stringify(recordOf(photo)) + "\n").join("") },
  csv: { type: "text/csv", make: (photos) => "\ufeff" + [COLUMNS.join(","), ...photos.map(rowOf)].join("\r\n") + "\r\n" },
};

export function save(blob, name) {
  const link = document.createElement("a");
  Object.assign(link, { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
