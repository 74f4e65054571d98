// The page of an exported model. Photos stay on this device; a worker captions them.
import { listen } from "./intake.js";
import { Strip } from "./strip.js";
import { Viewer } from "./viewer.js";

const SENTENCES = 3;  // the caption and the two next best

const about = await (await fetch("captioner.json")).json();
const page = document.querySelector(".captioner"), worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
let visits = [], visit = null, last = 0;  // { key, photo, name, phase, record or problem, sentence, text, aside }; the open one

const viewer = new Viewer(page.querySelector(".viewer"), about.drawing, {
  onChoose: (sentence) => { visit.sentence = sentence; list(); },
  onCorrect: (text, aside, reviewed) => { Object.assign(visit, { text, aside, reviewed }); list(); },
  onLeave: () => strip.focus(visit.key),
});
const strip = new Strip(page.querySelector(".strip"), {
  onOpen: (key) => open(visits.find((entry) => entry.key === key)),
  onWrite: () => viewer.write(),
  onClear: () => { visits = []; visit = null; list(); viewer.empty(); },
});
const list = () => strip.show(visits, visit?.key);

const { explain } = listen(page, take, () => {});
page.querySelector(".limits").textContent = about.limits;
page.querySelector(".model").textContent = `Model: ${about.name} ${about.version}. Licence: ${about.licence}.`;
document.querySelector(".opened").hidden = true;
page.hidden = false;
viewer.empty();
addEventListener("beforeunload", (event) => { if (visits.some(({ text, aside }) => text !== undefined || aside)) event.preventDefault(); });
worker.postMessage({});  // load the model in advance

function take(files) {
  if (!files.length) return;
  explain("");
  const added = files.map((file) => ({ key: ++last, photo: file, name: file.name, phase: "Loading the model …", sentence: 0 }));
  visits.push(...added);
  open(added[0]);
  for (const { key, photo, name } of added) worker.postMessage({ key, photo, name, captions: SENTENCES });
}

function open(next) {
  visit = next;
  list();
  if (visit.problem) viewer.fail(visit.problem, null);
  else if (visit.record) viewer.show(visit);
  else viewer.wait({ ...visit, quiet: true });
}

worker.onmessage = ({ data: { key, phase, record, problem } }) => {
  const mine = visits.find((entry) => entry.key === key);
  if (key === undefined && problem && !visit) viewer.fail(problem, null);
  if (!mine) return;
  Object.assign(mine, phase && { phase }, record && { record }, problem && { problem });
  if (mine === visit) open(mine);
  else list();
};
