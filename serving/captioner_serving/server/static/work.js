// The photo in work: sent, waiting in the queue, captioned. The newest wins, and what was asked for
// before it is taken back. Everybody who shows something listens to `work`.
import { fromServer, problems } from "./problems.js";

export const work = new EventTarget();
export const settings = {};  // beam_size and captions, as the next request will ask

let shown = null;    // the value of the caption on the page
let source = null;   // what it was asked of: { file } or { sample } or { token }
let running = null;  // the request under way
let picture = null;  // of the photo in work, an address that can be shown before the server has it

export const at = (path) => new URL("page/" + path, document.baseURI).href;
export const photoOf = (value) => at(`captions/${value.token}/photo.jpg`);

function become(state) {
  work.dispatchEvent(new CustomEvent("change", { detail: state }));
}

function wait(phase, more = {}) {
  become({ kind: "waiting", picture, name: source.file?.name ?? source.sample ?? "", phase, ...more });
}

export function fail(problem) {
  stop();
  shown = null;
  const again = problem.again || (problem.expired && Boolean(source?.file));  // the browser has it still
  become({ kind: "failed", problem: { ...problem, again } });
}

function show(value) {
  shown = value;
  Object.assign(settings, value.settings);
  become({ kind: "shown", value });
}

function stop() {
  const request = running;
  running = null;
  request?.abort();
}

// Caption a photo: { file }, or { sample, picture }. Back leads to the photo before it.
export function caption(from) {
  if (picture?.startsWith("blob:")) URL.revokeObjectURL(picture);
  picture = from.file ? URL.createObjectURL(from.file) : from.picture;
  source = from;
  send(from, (state) => history.pushState(state, ""));
}

// The same photo again, with other settings or after a failure.
export function again() {
  if (!source) return;
  const from = shown ? { token: shown.token } : source;
  send(from, (state) => history.replaceState(state, ""));
}

function send(from, remember) {
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
      else { running = null; remember({ ...history.state, captioner: { token: line.token, sentence: 0 } }); show(line); }
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

async function fetchShown(token, sentence) {
  const response = await fetch(at(`captions/${token}?sentence=${sentence}`)).catch(() => null);
  if (!response) throw problems.unreachable();
  if (!response.ok) throw fromServer(await response.json().catch(() => null), response.status);
  return response.json();
}

// Another of the sentences that the model considered, with its own words.
export async function choose(sentence) {
  const { token } = shown;
  try {
    const value = await fetchShown(token, sentence);
    if (shown?.token !== token) return;
    history.replaceState({ ...history.state, captioner: { token, sentence } }, "");
    show(value);
  } catch (problem) {
    if (shown?.token === token) fail(problem);
  }
}

// After a reload, and after Back: what this place in the history showed.
async function restore(first) {
  const kept = history.state?.captioner;
  if (!kept || kept.token === first?.token && !kept.sentence) {
    source = first ? { token: first.token } : null;
    picture = first ? photoOf(first) : null;
    stop();
    return first ? show(first) : become({ kind: "empty" });
  }
  stop();
  source = kept;
  picture = photoOf(kept);
  wait("queued");
  const mine = source;
  try {
    const value = await fetchShown(kept.token, kept.sentence);
    if (source === mine && !running) show(value);
  } catch (problem) {
    if (source === mine && !running) fail(problem);
  }
}

export function begin(first, usual) {
  Object.assign(settings, usual);
  addEventListener("popstate", () => restore(first));
  restore(first);
}
