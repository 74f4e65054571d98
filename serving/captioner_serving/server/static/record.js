// What a record says, and what is taken home of it.

// The record of one of a record's sentences, as Caption.choose makes it.
export function chooseSentence(record, number) {
  const { caption, score, trust, words, doubt, alternatives } = record;
  if (!number) return record;
  const chosen = alternatives[number - 1], others = alternatives.filter((other) => other !== chosen);
  return { ...record, trust: undefined, doubt: undefined, ...chosen, alternatives: [{ caption, score, trust, words, doubt }, ...others] };
}

export const altText = (caption) => caption.charAt(0).toUpperCase() + caption.slice(1) + ".";

// The alt text of a sentence that nobody has corrected: none where the model is not to be trusted.
export const defaultText = (record, caption) => (record.review || record.unfamiliar ? "" : altText(caption));

// A photo as the strip has it: { name, address where it has one, record or problem, sentence, text }. `text` is what the
// visitor wrote, "" for a decorative picture, undefined where nothing was written.
export const textOf = ({ record, sentence, text }) => text ?? defaultText(record, chooseSentence(record, sentence).caption);

// Why a person should look at a photo: "failed", "untrusted", "unfamiliar", "doubtful".
export function marksOf({ record, sentence, text, problem }) {
  if (problem) return ["failed"];
  if (!record || text !== undefined) return [];  // a text that a person wrote is theirs
  const { doubt, words } = chooseSentence(record, sentence);
  const is = { untrusted: record.review, unfamiliar: record.unfamiliar, doubtful: doubt || words.some((word) => word.doubtful) };
  return Object.keys(is).filter((mark) => is[mark]);
}

// What is left to review: failures, and photos with marks or not yet looked at, until they are accepted.
export const isToReview = (photo) => Boolean(photo.problem || (photo.record && !photo.accepted && (!photo.looked || marksOf(photo).length)));

// The photos to train on: reviewed, with a caption. A caption that nobody corrected is as the model writes it.
export const trainable = (photos) => photos.filter((photo) => photo.record && !isToReview(photo) && textOf(photo).trim());
const trainingCaption = ({ record, sentence, text }) => text ?? chooseSentence(record, sentence).caption;

// The two files of a photo in a training set, of which `file` is the photo: NUMBER-NAME.jpg and NUMBER-NAME.txt.
export function trainingFiles(photo, file, number) {
  const [, stem, suffix] = /^(.*?)(\.[^.]*)?$/.exec(photo.name.replace(/[\\/:*?"<>|\0-\x1f]/g, "_"));
  const name = `${String(number).padStart(3, "0")}-${stem}`, kind = file.type === "image/jpeg" ? ".jpg" : suffix ?? "";
  return [{ name: name + kind, blob: file }, { name: name + ".txt", blob: new Blob([trainingCaption(photo).trim() + "\n"]) }];
}

export function recordOf({ name, address, record, problem, sentence, text }) {
  if (problem) return { image: address ?? name, error: { type: problem.type, title: problem.title, detail: problem.detail } };
  const { preview, ...chosen } = chooseSentence(record, sentence);
  return { ...chosen, image: address ?? name, ...(text === undefined ? {} : { corrected: text }) };
}

const COLUMNS = ["image", "alt", "caption", "score", "trust", "marks", "error"];

// A spreadsheet would run a cell that begins with one of these.
const cellOf = (value) => `"${String(value ?? "").replace(/^(?=[=+\-@\t\r＝＋－＠])/, "'").replaceAll('"', '""')}"`;

function rowOf(photo) {
  const { image, caption, score, trust, error } = recordOf(photo);
  const cells = [image, error ? "" : textOf(photo), caption, score, trust, error ? "" : marksOf(photo).join(" "), error?.detail];
  return cells.map((cell) => (typeof cell === "number" ? cell : cellOf(cell))).join(",");
}

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

const imageOf = (photo) => photo.problem ? `<!-- ${escaped(photo.name).replaceAll("--", "&#45;&#45;")} has no caption -->`
  : `<img src="${escaped(photo.address ?? encodeURIComponent(photo.name))}" alt="${escaped(textOf(photo))}"${dataOf(marksOf(photo))}>`;

const dataOf = (marks) => (marks.length ? ` data-marks="${marks.join(" ")}"` : "");

// All photos as one file: its name's end, its type, and how it is made.
export const FORMATS = {
  jsonl: { type: "application/jsonl", make: (photos) => photos.map((photo) => JSON.stringify(recordOf(photo)) + "\n").join("") },
  csv: { type: "text/csv", make: (photos) => "\ufeff" + [COLUMNS.join(","), ...photos.map(rowOf)].join("\r\n") + "\r\n" },
  html: { type: "text/html", make: (photos) => `<!doctype html>\n<meta charset="utf-8">\n<title>Captions</title>\n${photos.map(imageOf).join("\n")}\n` },
};

export function save(blob, name) {
  const link = document.createElement("a");
  Object.assign(link, { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
