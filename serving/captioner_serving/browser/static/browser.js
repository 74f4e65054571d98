// The page of an exported model: a photo comes in, stays on this device, and is captioned here.
import { listen } from "./intake.js";
import { Viewer } from "./viewer.js";

const SENTENCES = 3;  // the caption and the two next best
const MANY = { title: "One photo at a time", detail: "Several files came at once: choose one of them." };

const about = await (await fetch("captioner.json")).json();
const page = document.querySelector(".captioner"), worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const viewer = new Viewer(page.querySelector(".viewer"), about.drawing);
let visit = { key: 0 };  // what is on the page: { key, photo, name }; the newest wins

const forgetReason = listen(page, take, () => {});
page.querySelector(".model").textContent = `Model: ${about.name} ${about.version}. Licence: ${about.licence}.`;
document.querySelector(".opened").hidden = true;
page.hidden = false;
viewer.empty();
worker.postMessage({});  // it loads while a visitor looks for a photo

function take(files) {
  forgetReason();
  if (!files.length) return;
  visit = { key: visit.key + 1, photo: files[0], name: files[0].name };
  if (files.length > 1) return viewer.fail(MANY, null);
  viewer.wait({ ...visit, text: "Loading the model …" });
  worker.postMessage({ ...visit, captions: SENTENCES });
}

worker.onmessage = ({ data: { key, phase, sentence, record, problem } }) => {
  if (key !== visit.key) {
    if (key === undefined && problem) viewer.fail(problem, null);
    return;
  }
  if (phase) viewer.wait({ ...visit, text: phase, quiet: true });
  if (sentence) viewer.grow(sentence);
  if (record) viewer.show({ ...visit, record });
  if (problem) viewer.fail(problem, null);
};
