// Requests to the public HTTP API. Errors are thrown as { title, detail, again } for visitors; `again` is true if a
// retry can help.
const at = (path) => new URL(path, document.baseURI).href;
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
    again: status >= 500 || status === 408,
  };
}

function formOf(file, fields) {
  const form = new FormData();
  if (file) form.append("image", file, file.name);
  for (const [name, value] of Object.entries(fields)) if (value !== undefined) form.append(name, value);
  return form;
}

// Caption a photo, a file or a URL. Returns the record. follow(sent) is called with the share of the upload
// that is done, 0 to 1. Not with fetch(), which cannot report this.
export function caption({ name, file, url }, settings, { signal, follow }) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.upload.onprogress = ({ loaded, total }) => follow(loaded / total);
    request.upload.onload = () => follow(1);
    request.onerror = request.onabort = () => failed(problems.unreachable);
    request.onload = () => {
      const answer = parse(request.responseText), record = answer?.records?.[0];
      if (request.status === 200 && record) return done(record);
      const problem = request.status === 200 ? problems.unexpected : problemOf(answer, request.status);
      failed({ ...problem, detail: problem.detail.replace(/^the image/, name) });  // the server does not name it
    };
    signal.addEventListener("abort", () => request.abort());
    request.open("POST", at("api/caption"));
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
export async function draw(kind, file, { model, beam_size, captions, style }, sentence, look) {
  const body = formOf(file, { model, beam_size, captions, style, sentence: sentence + 1, ...look });
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
