// The page: photos come in, are sent a few at a time, wait and are captioned. All of them are in the
// strip, one is open on the stage; Back and a reload show it again.
import * as album from "./album.js";
import { listen } from "./intake.js";
import { copyToSend } from "./photo.js";
import { isToReview } from "./record.js";
import { likely, percent } from "./sentence.js";
import * as server from "./server.js";
import { listenToSettings, supported } from "./settings.js";
import { Strip } from "./strip.js";
import { Viewer } from "./viewer.js";

// Why the sentence of a record is not shown: its trust is below the least one that was asked for.
const reasonToWithhold = ({ trust, review }, least) => review ? "No caption that could be trusted. "
  + `The best one ${trust === undefined ? "names nothing" : `is ${likely(trust)} likely to be right`}, and the search settings ask for ${percent(least)} at least.` : "";
const NOT_KEPT = "This browser has not kept the photo, and the server keeps none: choose it again.";
const TOO_MANY = `The first ${album.MOST} are taken. Add the others when these are done.`;
const AT_ONCE = 4;  // photos under way: the server has other visitors

export function start(element, props) {
  const settings = { ...props.settings };  // beam_size, captions, style, minimum_trust, check_attention: of the next request
  // What came in, oldest first: { key, name, file, sample or address, settings, records and record, or
  // problem, sentence, head, text, aside, looked, accepted, stored }. `key` is its place in the album; `record` is that
  // of `records`, one of each model, whose words are open; then what the visitor has chosen, written, set aside and
  // reviewed, and whether the browser has kept all of it. What has neither record nor problem waits for one: `job` takes
  // its request back, once it is under way, and `phase` says how far it is.
  let visits = [];
  let visit = null;     // the one on the stage; a sample that nobody has touched is in no list
  let checking = null;  // takes back a check of words
  let removed = null;   // the last photo that was removed, and its place: it can be brought back

  const [first] = props.value;
  const viewer = new Viewer(element.querySelector(".viewer"), props.drawing, {
    onModel: (number) => { change({ record: visit.records[number], sentence: 0, head: null }); show(); },
    onChoose: (sentence, head) => { change({ sentence, head }); check(); },
    onCorrect: (text, aside) => { change({ text, aside }, { soon: true }); },
    onAccept: accept,
    draw: async (kind, { chosen, head }, word, look) => server.draw(kind, await readable(visit), chosen, { word, head, look }),
  });
  const strip = new Strip(element.querySelector(".strip"), {
    onOpen: (key) => open(visits.find((entry) => entry.key === key)), onClear: clear, onRemove: remove, onUndo: bringBack,
    fileOf: ({ key }) => readable(visits.find((entry) => entry.key === key)),
  });
  const allAgain = element.querySelector(".search .all");
  const showSettings = listenToSettings(element.querySelector(".search"), settings, props, again, check);
  const { explain } = listen(element, take, (sample) => add([ofSample(sample)]), props.allow_urls ? (address) => add([ofAddress(address)]) : null);

  // The place in the browser's history that this is.
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
    const came = photos.map((photo) => ({ sentence: 0, head: null, ...photo, key: album.newKey(), settings: { ...settings } }));
    visits.push(...came);
    keep(...came);  // before they are sent: a reload goes on with them
    open(came[0]);
    pump();
  }

  function open(next) {
    if (next !== visit || here().key !== next.key) history.pushState(stateOf(next.key), "");
    turnTo(next);
  }

  function turnTo(next) {
    checking?.abort();
    visit = next;
    Object.assign(settings, visit.settings);
    showSettings();
    show();
  }

  // What is known of the photo on the stage, and the strip.
  function show({ quiet } = {}) {
    const { name, address, record, records, problem, phase, sentence, head, text, aside } = visit, photo = photoOf(visit);
    if (record && !visit.looked && visits.includes(visit)) {
      visit.looked = true;
      keep(visit);
    }
    list();
    const { key } = visit, withheld = record ? reasonToWithhold(record, visit.settings.minimum_trust) : "";
    if (problem) viewer.fail(problem, problem.again ? retry : null, visits.includes(visit) ? () => remove(key) : null);
    else if (!record) viewer.wait({ photo, name, text: phase ?? "Waits its turn …", quiet });
    else { viewer.show({ photo, name, address, record, sentence, head, text, aside, withheld, compared: compared(records) }); check(); }
  }

  // What each model says, where there are several.
  const compared = (records) => (records?.length > 1 ? records.map((record) => ({ name: record.model.name, record })) : []);

  // Something about the photo on the stage is another now; the first sample becomes the visitor's.
  function change(news, { soon = false } = {}) {
    const mine = Object.assign(visit, news);
    if (!visits.includes(visit)) {
      visits.push(Object.assign(visit, { key: album.newKey() }));
      history.replaceState(stateOf(visit.key), "");
    }
    clearTimeout(mine.writing);
    if (soon && mine.stored) {  // the visitor is typing
      album.putDraft(mine.key, { text: mine.text, aside: mine.aside });
      mine.writing = setTimeout(() => keep(mine), 300);
    } else keep(mine);
    list();
  }

  // The alt text is right as it stands: on to the next photo that is left to review.
  function accept() {
    change({ accepted: true });
    const at = visits.indexOf(visit), rest = [...visits.slice(at + 1), ...visits.slice(0, at)];
    const next = rest.find(isToReview) ?? visits[at + 1];
    if (!next) return viewer.say("This was the last photo to review.");
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

  function bringBack() {
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

  // The same photo with other settings; what was written of it stays.
  function again() {
    if (!visit) return;
    checking?.abort();
    change(renewed(visit, settings));
    pump();
  }

  function againWithAll() {
    checking?.abort();
    for (const entry of visits) { Object.assign(entry, renewed(entry, settings)); keep(entry); }
    if (visit) show();
    pump();
  }

  function retry() {
    change({ problem: undefined });
    pump();
  }

  // Send what waits, the photo on the stage first.
  function pump() {
    const waiting = visits.filter((entry) => !entry.record && !entry.problem).sort((one, other) => (other === visit) - (one === visit));
    const under = waiting.filter((entry) => entry.job).length;
    for (const entry of waiting.filter((entry) => !entry.job).slice(0, AT_ONCE - under)) send(entry);
  }

  async function send(mine) {
    const { signal } = (mine.job = new AbortController());
    const shows = (news) => { if (mine === visit) show(news); else list(); };
    const follow = (news) => {
      if (signal.aborted) return;
      mine.phase = phaseOf(news);
      shows({ quiet: "sent" in news });
    };
    follow(mine.file ? {} : { ahead: 0 });
    let found;
    try {
      const file = mine.address ? null : await readable(mine);
      if (signal.aborted) return;
      const settings = { ...mine.settings, all_models: props.models.length > 1 };
      const records = await server.caption({ ...mine, file }, settings, { signal, follow }), [record] = records;
      found = { record, records };
    } catch (problem) {
      found = { problem };
    }
    if (signal.aborted) return;
    Object.assign(mine, found, { job: null });
    keep(mine);
    shows();
    pump();
  }

  async function keep(...photos) {
    const mine = photos.filter(({ key }) => key);
    for (const entry of mine) entry.stored = false;
    const stored = await album.put(mine.map(({ key, name, file, sample, address, settings, record, records, problem, sentence, head, text, aside, looked, accepted }) => [key, {
      name, file: sample || address ? undefined : file, sample, address, settings, record, records, problem, sentence, head, text, aside, looked, accepted,
    }]));
    if (!stored && mine.length > 1) for (const entry of mine) keep(entry);  // one of them may be a folder
    else for (const entry of mine) entry.stored = stored;
  }

  async function fileOf(mine) {
    return mine.file ??= mine.sample ? await server.fetchSample(mine.sample) : await server.fileOf(mine);
  }

  // The file, or a smaller copy, if it may be sent.
  async function readable(mine) {
    const whole = await fileOf(mine);
    await whole.slice(0, 1).arrayBuffer().catch(() => { throw server.problems.unreadable(whole.name); });
    const file = await copyToSend(whole);
    if (file.size > props.max_upload) throw server.problems.tooLarge(file.name, props.max_upload);
    return file;
  }

  // What the words of the sentence on the page lost without the places that they looked at, where the
  // visitor wants to know it and does not yet.
  async function check() {
    checking?.abort();
    const mine = visit, { shown } = viewer;
    if (!settings.check_attention || !shown || shown.chosen.words.every((word) => !word.attention || word.effect !== undefined)) return;
    const { signal } = (checking = new AbortController());
    viewer.say("Checking each word …");
    try {
      const { words, note } = await server.check(await readable(mine), shown.chosen, signal);
      if (signal.aborted) return;
      const { record } = mine, { sentence } = shown;
      Object.assign(sentence ? record.alternatives[sentence - 1] : record, { words, note });
      change({ settings: { ...settings } });
      viewer.show({ ...viewer.shown, word: viewer.word, text: mine.text });
      viewer.say("Each word is checked.");
    } catch (problem) {
      if (!signal.aborted) viewer.say(`${problem.title}: ${problem.detail}`);
    }
  }

  async function clear() {
    for (const entry of visits) { entry.job?.abort(); clearTimeout(entry.writing); }
    checking?.abort();
    removed = null;
    strip.offerUndo(null);
    visits = [];
    visit = null;
    await album.clear();  // before it is said: a reload would bring them back
    history.replaceState(stateOf(undefined), "");
    list();
    viewer.empty();
  }

  // After a reload, and after Back: what this place in the history showed, or was waiting for.
  function restore() {
    const { key } = here(), kept = visits.find((entry) => entry.key === key);
    checking?.abort();
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

// A photo that is to be captioned once more, with these settings.
function renewed(mine, settings) {
  mine.job?.abort();
  return { job: null, record: undefined, records: undefined, problem: undefined, sentence: 0, head: null, accepted: undefined, settings: { ...settings } };
}

const ofSample = (name) => ({ name, sample: name, sentence: 0, head: null });

function ofAddress(address) {
  const { pathname, hostname } = new URL(address);
  return { name: pathname.split("/").at(-1) || hostname, address };
}

// What the viewer shows of it: the file itself, or the sample's address; what was fetched comes with
// its record.
const photoOf = ({ file, sample }) => (sample ? server.addressOf(sample) : file);

function phaseOf({ sent, ahead }) {
  if (ahead === 1) return "1 photo comes before this one …";
  if (ahead > 1) return ahead + " photos come before this one …";
  if (ahead === 0) return "Looking at the photo …";
  return "Sending the photo" + (sent > 0 && sent < 1 ? ", " + percent(sent) : "") + " …";
}
