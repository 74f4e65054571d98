// Records: sentences, alt texts, marks and downloads.
import { textIn } from "./zip.js";

// The record with another of its sentences as caption, like Caption.choose.
export function chooseSentence(record, number) {
  const { caption, score, trust, words, doubt, alternatives } = record;
  if (!number) return record;
  const chosen = alternatives[number - 1], rest = alternatives.filter((alternative) => alternative !== chosen);
  return { ...record, trust: undefined, doubt: undefined, ...chosen, alternatives: [{ caption, score, trust, words, doubt }, ...rest] };
}

// The state of a photo, by the trust of its caption; "" for a model without trust. docs/trust.md says how they were chosen.
const LIKELY_RIGHT = 0.55, LIKELY_WRONG = 0.3;
export function stateOf({ record, sentence, problem }) {
  if (problem || !record) return problem ? "failed" : "";
  const { trust } = chooseSentence(record, sentence);
  if (record.review || record.unfamiliar || trust < LIKELY_WRONG) return "likely wrong";
  return trust === undefined ? "" : trust < LIKELY_RIGHT ? "check" : "likely right";
}

// Photos in the order of review: failed, then by rising trust.
export function worstFirst(photos) {
  const rank = (photo) => ["failed", "likely wrong", "check", "likely right", ""].indexOf(stateOf(photo));
  const trust = ({ record, sentence }) => (record && chooseSentence(record, sentence).trust) ?? 1;
  return [...photos].sort((a, b) => rank(a) - rank(b) || trust(a) - trust(b));
}

// The words with a dashed underline: the two doubtful words with the lowest trust.
export const dashedOf = (words) => words.filter((word) => word.doubtful).sort((a, b) => a.trust - b.trust).slice(0, 2);

export function doubtOf({ words }, state) {
  const dashed = dashedOf(words), names = words.filter((word) => dashed.includes(word)).map(({ word }) => `“${word}”`).join(" and ");
  if (!names) return state === "check" || !state ? "" : `${altText(state)}`;
  return state === "likely wrong" ? `Likely wrong: check ${names}.` : `Check ${names}.`;
}

// A text of a person without control characters, which `captioner convert` refuses; "\x0b" is a line of PowerPoint.
export const clean = (text) => text?.replace(/[\0-\x08\x0b-\x1f\x7f\p{Surrogate}]/gu, " ");

export const altText = (caption) => caption && caption.charAt(0).toUpperCase() + caption.slice(1) + ".";

// The alt text without a correction; empty if the caption is not trusted.
export const defaultText = (record, caption) => (record.review || record.unfamiliar ? "" : altText(caption));

// A photo of the strip is { name, url, record or problem, sentence, text }. `text` is the visitor's text: "" for a
// decorative picture, undefined if nothing was written.
export const textOf = ({ record, sentence, text }) => text ?? defaultText(record, chooseSentence(record, sentence).caption);

// Marks of a photo: its state, and "untrusted" and "unfamiliar"; none if the visitor wrote the text.
export function marksOf(photo) {
  const { record, text } = photo;
  if (text !== undefined) return [];
  return [stateOf(photo), record?.review && "untrusted", record?.unfamiliar && "unfamiliar"].filter(Boolean);
}

// Photos to review: failures, and photos whose text no person has accepted or written.
export const isToReview = (photo) => Boolean((photo.problem || photo.record) && !photo.reviewed);

// The photos of a training set: reviewed, with a caption. Captions without a correction have the model's form.
export const trainable = (photos) => photos.filter((photo) => photo.record && photo.reviewed && textOf(photo).trim());
const trainingCaption = ({ record, sentence, text }) => text ?? chooseSentence(record, sentence).caption;

// The two files of a photo in a training set: NUMBER-NAME.jpg (`file`) and NUMBER-NAME.txt.
export function trainingFiles(photo, file, number) {
  const [, stem, suffix] = /^(.*?)(\.[^.]*)?$/.exec(photo.name.replace(/[\\/:*?"<>|\0-\x1f]/g, "_"));
  const name = `${String(number).padStart(3, "0")}-${stem}`, kind = file.type === "image/jpeg" ? ".jpg" : suffix ?? "";
  return [{ name: name + kind, blob: file }, { name: name + ".txt", blob: new Blob([trainingCaption(photo).trim() + "\n"]) }];
}

export function recordOf({ name, url, content, record, problem, sentence, text, reviewed }) {
  const image = url ?? name, error = problem && { type: problem.type, title: problem.title, detail: problem.detail };
  if (error && text === undefined) return { image, error };
  const { preview, ...chosen } = error ? { error } : chooseSentence(record, sentence);
  const isPerson = text !== undefined && text !== altText(chosen.caption);
  return { ...chosen, image, content, corrected: text, reviewed: Boolean(reviewed), caption_by: isPerson ? "person" : "model" };
}

// The reviewed texts of an earlier download, captions.jsonl or captions.zip.
export async function readTexts(file) {
  const lines = /\.zip$/i.test(file.name) ? await textIn(file, "captions.jsonl") : await file.text();
  return lines.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line))
    .filter(({ caption, corrected, reviewed }) => corrected !== undefined || (reviewed && caption))
    .map(({ image, content, caption, corrected }) => ({ image, content, text: clean(corrected ?? altText(caption)) }));
}

const COLUMNS = ["image", "alt", "caption", "score", "trust", "marks", "reviewed", "caption_by", "error"];

// Escape beginnings of cells that a spreadsheet would run as a formula, as captioner batch does.
const cellOf = (value) => `"${String(value ?? "").replace(/((?:^|[,;|\t\r\n])[\s"]*)(?='*[=+@＝＋＠－-])/g, "$1'").replaceAll('"', '""')}"`;

function rowOf(photo) {
  const { image, caption, score, trust, reviewed, caption_by, error } = recordOf(photo);
  // An empty alt text means decorative: a photo to review has the model's sentence.
  const alt = photo.text ?? altText(caption), marks = error ? [] : marksOf(photo);
  const cells = [image, alt, caption, score, trust, marks.join(", "), reviewed, caption_by, error?.detail];
  return cells.map((cell) => (typeof cell === "number" ? cell : cellOf(cell))).join(",");
}

// Formats for downloading all photos, by suffix.
export const FORMATS = {
  jsonl: { type: "application/jsonl", make: (photos) => photos.map((photo) => JSON.stringify(recordOf(photo)) + "\n").join("") },
  csv: { type: "text/csv", make: (photos) => "\ufeff" + [COLUMNS.join(","), ...photos.map(rowOf)].join("\r\n") + "\r\n" },
};

// An element with properties and children.
export function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export const makeButton = (className, textContent, onclick) => make("button", { type: "button", className, textContent, onclick });

export function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
