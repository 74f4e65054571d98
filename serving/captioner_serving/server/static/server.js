// The server, asked over its HTTP API: the same that other programs have. What goes wrong is thrown as
// a problem in words for people: { title, detail, again }, the last where trying again can help.
const at = (path) => new URL(path, document.baseURI).href;
const LINES = "application/x-ndjson";
const megabytes = (bytes) => Math.round(bytes / 1e5) / 10 + " MB";

export const problems = {
  tooLarge: (name, limit) => ({
    type: "upload-too-large",
    title: "The photo is too large",
    detail: `${name} has more than the ${megabytes(limit)} that this server takes. Save it smaller, and choose it again.`,
  }),
  unreadable: (name) => ({
    title: "The file cannot be read",
    detail: `${name} is a folder, or has been moved or changed meanwhile. Choose the photo again.`,
  }),
  unreachable: { title: "The server does not answer", detail: "It may have been stopped, or the network is down.", again: true },
  unexpected: {
    title: "Something else answered in the server's place",
    detail: "Perhaps you have to sign in again. Reload the page; what you wrote stays.",
    again: true,
  },
  interrupted: { title: "The server stopped before it had finished", detail: "There is no caption of this photo yet.", again: true },
};

const WORDS = {
  "busy": { title: "Too many photos are waiting", detail: "The server takes no more at the moment. Try again in a few seconds.", again: true },
  "closing": { title: "The server is shutting down", detail: "It takes no more photos. If it is starting anew, try again soon.", again: true },
  "upload-too-slow": { title: "The photo took too long to arrive", detail: "The connection is slow. A smaller photo arrives sooner.", again: true },
};

// JSON as an object; null where it is anything else, such as a proxy's page.
function parse(text) {
  try { return Object(JSON.parse(text)); } catch { return null; }
}

function problemOf(problem, status) {
  return {
    type: problem?.type,
    title: problem?.title ?? "The server could not do this",
    detail: problem?.detail ?? `It answered with the status ${status}.`,
    again: status >= 500,
    ...WORDS[problem?.type],
  };
}

function formOf(file, fields) {
  const form = new FormData();
  if (file) form.append("image", file, file.name);
  for (const [name, value] of Object.entries(fields)) if (value !== undefined) form.append(name, value);
  return form;
}

// The records of a photo, one of each model: its file, or its address, which the server fetches. `follow` hears how far it is: { sent: 0..1 }, then { ahead: n } while n photos
// come first. XMLHttpRequest alone knows how much of an upload has been sent.
export function caption({ name, file, address }, settings, { signal, follow }) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    // The server does not say a photo's name, which it was only told.
    const named = (problem) => ({ ...problem, detail: problem.detail.replace(/^the image/, name) });
    const take = () => {
      const line = request.responseText.split("\n").at(-2);  // the last that is whole
      if (request.status !== 200 || !line) return;
      const news = parse(line), records = news?.records ?? [], bad = records.find((record) => record.error);
      if (bad) failed(named(problemOf(bad.error, 200)));
      else if (records.length) done(records);
      else if (typeof news?.ahead === "number") follow(news);
      else failed(problems.unexpected);
    };
    request.upload.onprogress = ({ loaded, total }) => follow({ sent: loaded / total });
    request.upload.onload = () => follow({ ahead: 0 });
    request.onprogress = take;
    request.onerror = () => failed(problems.unreachable);
    request.onload = () => {
      take();
      if (request.status !== 200) return failed(problemOf(parse(request.responseText), request.status));
      const isOurs = request.getResponseHeader("Content-Type")?.startsWith(LINES);
      failed(isOurs ? problems.interrupted : problems.unexpected);
    };
    signal.addEventListener("abort", () => request.abort());
    request.open("POST", at("api/caption"));
    request.setRequestHeader("Accept", LINES);
    request.send(formOf(file, { ...settings, image_url: address, attention: true, preview: true }));
  });
}

// type: how the Content-Type of the answer begins.
async function answer(path, type, options) {
  const response = await fetch(at(path), options).catch(() => { throw problems.unreachable; });
  if (!response.ok) throw problemOf(parse(await response.text()), response.status);
  if (!response.headers.get("Content-Type")?.startsWith(type)) throw problems.unexpected;
  return response;
}

// What a photo and the record of one sentence of it are posted for once more.
function post(path, type, file, { preview, ...record }, fields, signal) {
  const form = formOf(file, { record: JSON.stringify({ ...record, alternatives: [] }), ...fields });
  return answer(path, type, { method: "POST", body: form, signal });
}

// The same sentence, with the effect of each word.
export async function check(file, record, signal) {
  const response = await post("api/effect", "application/json", file, record, {}, signal);
  const news = parse(await response.text());
  if (!news?.records?.length) throw problems.unexpected;
  return news.records[0];
}

// A picture of it as a Blob: kind is overlay (of a word, from 1), sheet or animation.
export async function draw(kind, file, record, { word, head, look }) {
  const fields = { ...look, ...(head ? { head } : {}), ...(kind === "overlay" ? { word } : {}) };
  return (await post("api/" + kind, "image/", file, record, fields)).blob();
}

// What the server showed of a photo that it had fetched, as a file.
export async function fileOf({ name, record }) {
  if (!record?.preview) throw problems.unreadable(name);
  return new File([await (await fetch(record.preview.image)).blob()], name, { type: "image/jpeg" });
}

export const addressOf = (sample) => at("page/samples/" + encodeURIComponent(sample));

export async function fetchSample(name) {
  const response = await answer(addressOf(name), "image/");
  return new File([await response.blob()], name, { type: response.headers.get("Content-Type") ?? "" });
}
