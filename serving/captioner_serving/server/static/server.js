// Requests to the public HTTP API. Errors are thrown as { title, detail, again } for visitors; `again` is true if a
// retry can help.
const at = (path) => new URL(path, document.baseURI).href;
const LINES = "application/x-ndjson";
const megabytes = (bytes) => Math.round(bytes / 1e5) / 10 + " MB";

export const problems = {
  tooLarge: (name, limit) => ({
    type: "upload-too-large",
    title: "The photo is too large",
    detail: `${name} is larger than the limit of ${megabytes(limit)}. Save it smaller, and choose it again.`,
  }),
  unreadable: (name) => ({
    title: "The file cannot be read",
    detail: `${name} is a folder, or was moved or changed. Choose the photo again.`,
  }),
  unreachable: { title: "The server does not answer", detail: "It was stopped, or the network is down.", again: true },
  unexpected: {
    title: "Unexpected answer",
    detail: "You may have to sign in again. Reload the page; your texts are kept.",
    again: true,
  },
  interrupted: { title: "The server stopped early", detail: "There is no caption of this photo yet.", again: true },
};

const WORDS = {
  "busy": { title: "Too many photos are waiting", detail: "Try again in a few seconds.", again: true },
  "closing": { title: "The server is shutting down", detail: "Try again soon.", again: true },
  "upload-too-slow": { title: "The upload took too long", detail: "The connection is slow. Send a smaller photo.", again: true },
};

// A JSON object; null for anything else, such as an error page of a proxy.
function parse(text) {
  try { return Object(JSON.parse(text)); } catch { return null; }
}

function problemOf(problem, status) {
  return {
    type: problem?.type,
    title: problem?.title ?? "The server failed",
    detail: problem?.detail ?? `Status ${status}.`,
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

// Caption a photo, a file or a URL. Returns the records, one per model. `follow` is called with { sent: 0..1 }, then with
// { ahead: n } while n photos come first. Not with fetch(), which cannot report the progress of an upload.
export function caption({ name, file, url }, settings, { signal, follow }) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    // Messages of the server do not contain the name of the photo.
    const withName = (problem) => ({ ...problem, detail: problem.detail.replace(/^the image/, name) });
    const take = () => {
      const line = request.responseText.split("\n").at(-2);  // the last complete line
      if (request.status !== 200 || !line) return;
      const news = parse(line), records = news?.records ?? [], bad = records.find((record) => record.error);
      if (bad) failed(withName(problemOf(bad.error, 200)));
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
      const isStream = request.getResponseHeader("Content-Type")?.startsWith(LINES);
      failed(isStream ? problems.interrupted : problems.unexpected);
    };
    signal.addEventListener("abort", () => request.abort());
    request.open("POST", at("api/caption"));
    request.setRequestHeader("Accept", LINES);
    request.send(formOf(file, { ...settings, image_url: url, attention: true, preview: true }));
  });
}

// type: the beginning of the expected Content-Type.
async function answer(path, type, options) {
  const response = await fetch(at(path), options).catch(() => { throw problems.unreachable; });
  if (!response.ok) throw problemOf(parse(await response.text()), response.status);
  if (!response.headers.get("Content-Type")?.startsWith(type)) throw problems.unexpected;
  return response;
}

// A picture of all words of a sentence (0: the caption), as a Blob. kind: sheet or animation.
export async function draw(kind, file, { model, beam_size, captions, style }, { sentence, head, look }) {
  const body = formOf(file, { model, beam_size, captions, style, sentence: sentence + 1, head: head ?? undefined, ...look });
  return (await answer("api/" + kind, "image/", { method: "POST", body })).blob();
}

// The preview of a photo that the server downloaded, as a file.
export async function fileOf({ name, record }) {
  if (!record?.preview) throw problems.unreadable(name);
  return new File([await (await fetch(record.preview.image)).blob()], name, { type: "image/jpeg" });
}

export const sampleUrl = (sample) => at("page/samples/" + encodeURIComponent(sample));

export async function fetchSample(name) {
  const response = await answer(sampleUrl(name), "image/");
  return new File([await response.blob()], name, { type: response.headers.get("Content-Type") ?? "" });
}
