// What a record says, and what is taken home of it.

// The record of one of a record's sentences, as Caption.choose makes it.
export function chooseSentence(record, number) {
  const { caption, score, trust, words, doubt, alternatives } = record;
  if (!number) return record;
  const chosen = alternatives[number - 1], others = alternatives.filter((other) => other !== chosen);
  return { ...record, trust: undefined, doubt: undefined, ...chosen, alternatives: [{ caption, score, trust, words, doubt }, ...others] };
}

export const altText = (caption) => caption.charAt(0).toUpperCase() + caption.slice(1) + ".";

// Of a photo as the strip has it: { name, address where it has one, record or problem, sentence, text }. `text` is what somebody
// made of the sentence, "" of a picture that only decorates, undefined where nobody touched it.
export const textOf = ({ record, sentence, text }) => text ?? altText(chooseSentence(record, sentence).caption);

export function recordOf({ name, address, record, problem, sentence, text }) {
  if (problem) return { image: address ?? name, error: { type: problem.type, title: problem.title, detail: problem.detail } };
  const { preview, ...chosen } = chooseSentence(record, sentence);
  return { ...chosen, image: address ?? name, ...(text === undefined ? {} : { corrected: text }) };
}

const COLUMNS = ["image", "alt", "caption", "score", "trust", "error"];

// A spreadsheet would run a cell that begins with one of these.
const cellOf = (value) => `"${String(value ?? "").replace(/^(?=[=+\-@\t\r＝＋－＠])/, "'").replaceAll('"', '""')}"`;

function rowOf(photo) {
  const { image, caption, score, trust, error } = recordOf(photo);
  const cells = [image, error ? "" : textOf(photo), caption, score, trust, error?.detail];
  return cells.map((cell) => (typeof cell === "number" ? cell : cellOf(cell))).join(",");
}

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

const imageOf = (photo) => photo.problem ? `<!-- ${escaped(photo.name).replaceAll("--", "&#45;&#45;")} has no caption -->`
  : `<img src="${escaped(photo.address ?? encodeURIComponent(photo.name))}" alt="${escaped(textOf(photo))}">`;

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
