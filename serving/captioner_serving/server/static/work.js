// The photo in work: sent, waiting in the queue, captioned. The newest wins, and what was asked for
// before it is taken back. Everybody who shows something listens to `work`.
import { drop, find, keep, sweepSoon } from "./keeping.js";
import { fromServer, problems } from "./problems.js";

export const work = new EventTarget();
export const settings = {};  // beam_size, captions, style and check_attention, as the next request will ask

let styles = [];     // that the model knows
let shown = null;    // the value of the caption on the page
let source = null;   // what it was asked of: { file } or { sample } or { token }
let running = null;  // the request under way
let chosen = null;   // the sentence and head asked for last, until they are there
let picture = null;  // of the photo in work, an address that can be shown before the server has it

export const at = (path) => new URL("page/" + path, document.baseURI).href;
export const photoOf = (value) => at(`captions/${value.token}/photo.jpg`);

// Which photo this place in the browser's history is of: { waiting } or { sample }, and once it has
// its caption { token, sentence }.
const place = () => history.state?.captioner;
const stateOf = (captioner) => ({ ...history.state, captioner });

function become(state) {
  work.dispatchEvent(new CustomEvent("change", { detail: state }));
}

function wait(phase, more = {}) {
  become({ kind: "waiting", picture, name: source.file?.name ?? source.sample ?? "", phase, ...more });
}

export function fail(problem) {
  stop();
  shown = null;
  if (problem.expired && source?.file) problem = problems.expired();
  become({ kind: "failed", problem });
}

function show(value) {
  shown = value;
  Object.assign(settings, value.settings);
  become({ kind: "shown", value });
}

function stop() {
  const request = running;
  running = chosen = null;
  request?.abort();
}

// Caption a photo: { file }, or { sample, picture }. Back leads to the photo before it.
export function caption(from) {
  const { file, sample, picture } = from;
  history.pushState(stateOf({ ...(file ? { waiting: keep(file) } : { sample, picture }), settings: { ...settings } }), "");
  begin(from);
}

// The browser keeps what a blob's address leads to until it is told otherwise.
function setPicture(address) {
  if (picture?.startsWith("blob:")) URL.revokeObjectURL(picture);
  picture = address;
}

function begin(from) {
  setPicture(from.file ? URL.createObjectURL(from.file) : from.picture);
  source = from;
  send(from);
}

// The same photo again, with other settings or after a failure.
export function again() {
  const from = shown ? { token: shown.token } : source;
  // A photo that the browser has yet to find will be sent with the settings of then.
  if (from?.file || from?.sample || from?.token) send(from);
}

function send(from) {
  stop();
  shown = null;
  const form = new FormData();
  if (from.file) form.append("photo", from.file, from.file.name);
  else for (const name of ["sample", "token"]) if (from[name]) form.append(name, from[name]);
  for (const [name, value] of Object.entries(settings)) form.append(name, value);
  const request = new XMLHttpRequest();
  running = request;
  const ours = (handle) => (event) => { if (running === request) handle(event); };
  let read = 0;
  const lines = () => {
    const text = request.responseText, end = text.lastIndexOf("\n") + 1;
    const fresh = text.slice(read, end).split("\n").filter(Boolean).map(JSON.parse);
    read = end;
    return fresh;
  };
  const follow = () => {
    if (request.status !== 200) return;
    for (const line of lines()) {
      if (line.error) fail(fromServer(line.error, 200));
      else if ("ahead" in line) wait("queued", line);
      else arrive(line);
    }
  };
  request.open("POST", at("captions"));
  request.upload.onprogress = ours((event) => wait("sending", { share: event.loaded / event.total }));
  request.upload.onload = ours(() => wait("queued"));
  request.onprogress = ours(follow);
  request.onerror = ours(() => fail(read ? problems.interrupted() : problems.unreachable()));
  request.onload = ours(() => {
    follow();
    if (running !== request) return;
    if (request.status === 200) return fail(problems.interrupted());
    let problem = null;
    try { problem = JSON.parse(request.responseText); } catch { /* not from us: a proxy's page */ }
    fail(fromServer(problem, request.status));
  });
  wait(from.file ? "sending" : "queued");
  request.send(form);
}

function arrive(value) {
  running = null;
  if (place()?.waiting) drop(place().waiting);
  history.replaceState(stateOf({ token: value.token, sentence: 0 }), "");
  show(value);
}

// The server's answer, or its problem thrown.
export async function ask(address) {
  const response = await fetch(address).catch(() => null);
  if (!response) throw problems.unreachable();
  if (!response.ok) throw fromServer(await response.json().catch(() => null), response.status);
  return response;
}

async function fetchShown({ token, sentence, head }) {
  const query = new URLSearchParams({ sentence, ...(head ? { head } : {}) });
  return (await ask(at(`captions/${token}?${query}`))).json();
}

// Another of the sentences that the model considered, with its own words; and whose attention is
// shown: that of one head, or of all where there is none given. Answers may come in another order
// than they were asked for: only the last one counts.
export async function choose(sentence, head) {
  chosen = null;
  if (shown.sentence === sentence && shown.head === head) return;
  const wanted = chosen = { token: shown.token, sentence, head };
  try {
    const value = await fetchShown(wanted);
    if (chosen !== wanted) return;
    chosen = null;
    history.replaceState(stateOf(wanted), "");
    show(value);
  } catch (problem) {
    if (chosen === wanted) fail(problem);
  }
}

// After a reload, and after Back: what this place in the history showed, or was waiting for.
async function restore(first) {
  stop();
  shown = null;
  const here = place();
  if (!here || here.token && here.token === first?.token && !here.sentence && !here.head) {
    source = first ? { token: first.token } : null;
    setPicture(first ? photoOf(first) : null);
    return first ? show(first) : become({ kind: "empty" });
  }
  // Of a server that has started again with another model, only what this one knows.
  for (const [name, value] of Object.entries(here.settings ?? {})) {
    if (name in settings && (name !== "style" || styles.includes(value))) settings[name] = value;
  }
  if (here.sample) return begin(here);
  source = here;
  setPicture(here.token ? photoOf(here) : null);
  wait("queued");
  const current = () => source === here && !running;
  try {
    if (here.waiting) {
      const file = await find(here.waiting);
      if (!current()) return;
      return file ? begin({ file }) : fail(fromServer({ type: "gone" }));
    }
    const value = await fetchShown(here);
    if (current()) show(value);
  } catch (problem) {
    if (current()) fail(problem);
  }
}

export function open(first, usual, known) {
  sweepSoon();
  styles = known;
  Object.assign(settings, usual);
  addEventListener("popstate", () => restore(first));
  restore(first);
}
