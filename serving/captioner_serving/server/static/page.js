// The page: photos are sent to the server, a few at a time, and listed in the strip. One is open in the
// viewer; Back and a reload show it again.
import * as album from "./album.js";
import { listen } from "./intake.js";
import { copyToSend } from "./photo.js";
import { isToReview } from "./record.js";
import { likely, percent } from "./sentence.js";
import * as server from "./server.js";
import { listenToSettings, supported } from "./settings.js";
import { Strip } from "./strip.js";
import { Viewer } from "./viewer.js";

// Why the caption of a record is not shown: its trust is below the minimum.
const reasonToWithhold = ({ trust, review }, minimum) => review ? "No trusted caption. "
  + `The best one ${trust === undefined ? "names nothing" : `is ${likely(trust)} likely to be right`}; the minimum in the search settings is ${percent(minimum)}.` : "";
const NOT_KEPT = "This photo is no longer stored in the browser. Choose it again.";
const TOO_MANY = `Only the first ${album.MOST} were added. Add the rest when these are done.`;
const AT_ONCE = 4;  // concurrent requests

export function start(element, props) {
  const settings = { ...props.settings };  // beam_size, captions, style, minimum_trust, check_attention: of the next request
  // The photos, oldest first:
  //   key                     the key in the album
  //   name, file, sample, url the photo: a file, a sample or a URL
  //   settings                the settings of its request
  //   records, record         one record per model, and the one that is open; or `problem`
  //   sentence, head          what the visitor has selected
  //   text, aside             the visitor's text, and a text that Decorative or Undo has replaced
  //   looked, accepted        whether the photo was opened and accepted
  //   stored                  whether the album has all of it
  //   job, phase              while it is captioned: an AbortController, and the progress
  let visits = [];
  let visit = null;     // the open photo; the first sample is not in `visits` until it is changed
  let removed = null;   // the last removed photo and its position, for Undo

  const [first] = props.value;
  const viewer = new Viewer(element.querySelector(".viewer"), props.drawing, {
    onModel: (number) => { change({ record: visit.records[number], sentence: 0, head: null }); show(); },
    onChoose: (sentence, head) => { change({ sentence, head }); },
    onCorrect: (text, aside) => { change({ text, aside }, { soon: true }); },
    onAccept: accept,
    draw: async (kind, { record, sentence, head }, look) => {
      const settings = settingsFor(visit, record.model.name);
      return server.draw(kind, await readable(visit), settings, { sentence, head, look });
    },
  });
  const strip = new Strip(element.querySelector(".strip"), {
    onOpen: (key) => open(visits.find((entry) => entry.key === key)), onClear: clear, onRemove: remove, onUndo: undoRemove,
    fileOf: ({ key }) => readable(visits.find((entry) => entry.key === key)),
  });
  const allAgain = element.querySelector(".search .all");
  const showSettings = listenToSettings(element.querySelector(".search"), settings, props, again);
  const { explain } = listen(element, take, (sample) => add([ofSample(sample)]), props.allow_urls ? (url) => add([ofUrl(url)]) : null);

  // The settings of a photo's request to a model. The style and the minimum trust are of the first model.
  const settingsFor = ({ settings }, model) => (model === props.models[0] ? { ...settings, model }
    : { ...settings, model, style: undefined, minimum_trust: undefined });

  // The entry in the browser's history.
  const here = () => history.state?.captioner ?? {};
  const stateOf = (key) => ({ ...history.state, captioner: { key } });

  function list() {
    strip.show(visits.map((entry) => ({ ...entry, photo: photoOf(entry) })), visit?.key);
    allAgain.hidden = visits.length < 2;
  }

  function take(files) {
    add(files.slice(0, album.MOST).map((file) => ({ name: file.name, file })));
    if (files.length > album.MOST) explain(TOO_MANY);
  }

  function add(photos) {
    if (!photos.length) return;
    explain("");
    const added = photos.map((photo) => ({ sentence: 0, head: null, ...photo, key: album.newKey(), settings: { ...settings } }));
    visits.push(...added);
    keep(...added);  // before they are sent, so that a reload continues with them
    open(added[0]);
    pump();
  }

  function open(next) {
    if (next !== visit || here().key !== next.key) history.pushState(stateOf(next.key), "");
    turnTo(next);
  }

  function turnTo(next) {
    visit = next;
    Object.assign(settings, visit.settings);
    showSettings();
    show();
  }

  // Update the viewer and the strip.
  function show({ quiet } = {}) {
    const { name, url, record, records, problem, phase, sentence, head, text, aside } = visit, photo = photoOf(visit);
    if (record && !visit.looked && visits.includes(visit)) {
      visit.looked = true;
      keep(visit);
    }
    list();
    const { key } = visit, withheld = record ? reasonToWithhold(record, visit.settings.minimum_trust) : "";
    if (problem) viewer.fail(problem, problem.again ? retry : null, visits.includes(visit) ? () => remove(key) : null);
    else if (!record) viewer.wait({ photo, name, text: phase ?? "Waiting …", quiet });
    else viewer.show({ photo, name, url, record, sentence, head, text, aside, withheld, compared: compared(records) });
  }

  // The records of all models, if there are several.
  const compared = (records) => (records?.length > 1 ? records.map((record) => ({ name: record.model.name, record })) : []);

  // Change the open photo. A changed sample is added to the list.
  function change(news, { soon = false } = {}) {
    const mine = Object.assign(visit, news);
    if (!visits.includes(visit)) {
      visits.push(Object.assign(visit, { key: album.newKey() }));
      history.replaceState(stateOf(visit.key), "");
    }
    clearTimeout(mine.writing);
    Object.assign(mine, { stored: false, version: (mine.version ?? 0) + 1 });
    if (soon) mine.writing = setTimeout(() => keep(mine), 300);  // the visitor is typing
    else keep(mine);
    list();
  }

  // Accept the alt text, and open the next photo to review.
  function accept() {
    change({ accepted: true });
    const at = visits.indexOf(visit), rest = [...visits.slice(at + 1), ...visits.slice(0, at)];
    const next = rest.find(isToReview) ?? visits[at + 1];
    if (!next) return viewer.say("There are no more photos to review.");
    open(next);
    viewer.write();
  }

  async function remove(key) {
    const at = visits.findIndex((entry) => entry.key === key);
    if (at < 0) return;
    const [mine] = visits.splice(at, 1), next = visits[at] ?? visits[at - 1];
    removed = { mine, at };
    mine.job?.abort();
    mine.job = null;
    clearTimeout(mine.writing);
    album.remove(key);
    strip.offerUndo(mine.name);
    if (mine !== visit) list();
    else if (next) { open(next); strip.focus(next.key); } else { visit = null; list(); viewer.empty(); }
    pump();
  }

  function undoRemove() {
    if (!removed) return;
    const { mine, at } = removed;
    removed = null;
    strip.offerUndo(null);
    visits.splice(at, 0, mine);
    keep(mine);
    open(mine);
    strip.focus(mine.key);
    pump();
  }

  // Caption the open photo again with other settings; its text is kept.
  function again() {
    if (!visit) return;
    change(renewed(visit, settings));
    pump();
  }

  function againWithAll() {
    for (const entry of visits) { Object.assign(entry, renewed(entry, settings)); keep(entry); }
    if (visit) show();
    pump();
  }

  function retry() {
    change({ problem: undefined });
    pump();
  }

  // Send waiting photos, the open one first.
  function pump() {
    const waiting = visits.filter((entry) => !entry.record && !entry.problem).sort((a, b) => (b === visit) - (a === visit));
    const running = waiting.filter((entry) => entry.job).length;
    for (const entry of waiting.filter((entry) => !entry.job).slice(0, AT_ONCE - running)) send(entry);
  }

  async function send(mine) {
    const { signal } = (mine.job = new AbortController());
    const update = (options) => { if (mine === visit) show(options); else list(); };
    const follow = (sent) => {
      if (signal.aborted) return;
      mine.phase = phaseOf(sent);
      update({ quiet: sent > 0 && sent < 1 });
    };
    follow(mine.file ? 0 : 1);
    let result;
    try {
      const file = mine.url ? null : await readable(mine);
      if (signal.aborted) return;
      const ask = (model, number) => server.caption({ ...mine, file }, settingsFor(mine, model), { signal, follow: number ? () => {} : follow });
      const records = await Promise.all(props.models.map(ask)), [record] = records;
      result = { record, records };
    } catch (problem) {
      result = { problem };
    }
    if (signal.aborted) return;
    Object.assign(mine, result, { job: null });
    keep(mine);
    update();
    pump();
  }

  async function keep(...photos) {
    const mine = photos.filter(({ key }) => key);
    const versions = mine.map((entry) => entry.version = (entry.version ?? 0) + 1);
    for (const entry of mine) entry.stored = false;
    const stored = await album.put(mine.map(({ key, name, file, sample, url, settings, record, records, problem, sentence, head, text, aside, looked, accepted }) => [key, {
      name, file: sample || url ? undefined : file, sample, url, settings, record, records, problem, sentence, head, text, aside, looked, accepted,
    }]));
    if (!stored && mine.length > 1) for (const entry of mine) keep(entry);  // a folder among them cannot be stored
    else mine.forEach((entry, index) => { if (entry.version === versions[index]) entry.stored = stored; });  // newer texts wait for their own write
  }

  async function fileOf(mine) {
    return mine.file ??= mine.sample ? await server.fetchSample(mine.sample) : await server.fileOf(mine);
  }

  // The file to send, or a smaller copy. Throws a problem if it is unreadable or too large.
  async function readable(mine) {
    const whole = await fileOf(mine);
    await whole.slice(0, 1).arrayBuffer().catch(() => { throw server.problems.unreadable(whole.name); });
    const file = await copyToSend(whole);
    if (file.size > props.max_upload) throw server.problems.tooLarge(file.name, props.max_upload);
    return file;
  }

  async function clear() {
    for (const entry of visits) { entry.job?.abort(); clearTimeout(entry.writing); }
    removed = null;
    strip.offerUndo(null);
    visits = [];
    visit = null;
    await album.clear();  // before the message, because a reload would restore them
    history.replaceState(stateOf(undefined), "");
    list();
    viewer.empty();
  }

  // After a reload or Back: open the photo of this history entry.
  function restore() {
    const { key } = here(), kept = visits.find((entry) => entry.key === key);
    visit = null;
    if (kept) return turnTo(kept);
    list();
    if (key) viewer.empty(NOT_KEPT);
    else if (first) turnTo({ ...ofSample(first.image), settings: { ...props.settings }, record: first, records: props.value });
    else viewer.empty();
  }

  album.all().then((kept) => {
    visits.unshift(...kept.map((entry) => ({ ...entry, settings: supported(entry.settings, props) })));
    restore();
    pump();
  });
  setInterval(album.sweep, 3600 * 1000);
  addEventListener("popstate", restore);
  addEventListener("beforeunload", (event) => { if (visits.some((entry) => !entry.stored)) event.preventDefault(); });
  addEventListener("keydown", (event) => {
    const step = { j: 1, k: -1 }[event.key.toLowerCase()];
    if (!step || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
    const key = strip.neighbour(step);
    if (key === undefined) return;
    open(visits.find((entry) => entry.key === key));
    strip.focus(key);
  });
  allAgain.onclick = againWithAll;
}

// Cancel the request of a photo. Returns the fields to assign, so that it is captioned with these settings.
function renewed(mine, settings) {
  mine.job?.abort();
  return { job: null, record: undefined, records: undefined, problem: undefined, sentence: 0, head: null, accepted: undefined, settings: { ...settings } };
}

const ofSample = (name) => ({ name, sample: name, sentence: 0, head: null });

function ofUrl(url) {
  const { pathname, hostname } = new URL(url);
  return { name: pathname.split("/").at(-1) || hostname, url };
}

// The file or the URL of a sample, for the viewer. The record of a downloaded photo has a preview.
const photoOf = ({ file, sample }) => (sample ? server.sampleUrl(sample) : file);

// The progress after a share of the upload.
function phaseOf(sent) {
  if (sent === 1) return "Captioning …";
  return "Sending the photo" + (sent ? ", " + percent(sent) : "") + " …";
}
