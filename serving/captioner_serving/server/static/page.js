// The page: photos are sent to the server, a few at a time, and listed in the strip. One is open in the
// viewer; Back and a reload show it again.
import * as album from "./album.js";
import { listen } from "./intake.js";
import { copyToKeep, copyToSend } from "./photo.js";
import { chooseSentence, defaultText, isToReview, readTexts } from "./record.js";
import { likely, percent } from "./sentence.js";
import * as server from "./server.js";
import { listenToSettings, supported } from "./settings.js";
import { Strip } from "./strip.js";
import { Viewer } from "./viewer.js";
import { checksum } from "./zip.js";

// Why the caption of a record is not shown: its trust is below the minimum.
const reasonToWithhold = ({ trust, review }, minimum) => review ? "No trusted caption. "
  + `The best one ${trust === undefined ? "names nothing" : `is ${likely(trust)} likely to be right`}; the minimum in the search settings is ${percent(minimum)}.` : "";
const NOT_KEPT = "This photo is no longer stored in the browser. Choose it again.";
const FULL = "The browser has no room for more. Download what is done, empty the list, and add the rest.";
const FIELDS = ["name", "sample", "url", "content", "settings", "record", "records", "missing", "problem", "sentence", "text", "aside",
  "reviewed", "removed"];  // what the album stores of a photo, beside its file
const AT_ONCE = 4;  // concurrent requests

export function start(element, props) {
  const settings = { ...props.settings };  // beam_size, captions, style, minimum_trust, check_attention: of the next request
  // The photos, oldest first:
  //   key                     the key in the album
  //   name, file, sample, url the photo: a file, a sample or a URL
  //   content                 size and checksum of the file
  //   settings                the settings of its request
  //   records, record         one record per model, and the one that is open; or `problem`
  //   missing                 the problems of models that failed
  //   sentence                the index of the selected sentence: 0 for the caption, 1 for the first alternative
  //   text, aside             the visitor's text, and a text that Decorative or Undo has replaced
  //   reviewed                whether a person has accepted or written the text
  //   unsaved, stored         fields that the album does not have yet, and whether it has the photo; or `deleted`
  //   isKeeping               whether its file is not in the album yet
  //   job, phase              while it is captioned: an AbortController, and the progress
  let visits = [];
  let visit = null;     // the open photo; the first sample is not in `visits` until it is changed
  let removed = null;   // the last removed photo, for Undo
  let earlier = [];     // texts of earlier downloads, whose photos are not in the list
  let identified = Promise.resolve();  // when the content of all photos is known

  const [first] = props.value;
  const viewer = new Viewer(element.querySelector(".viewer"), props.drawing, {
    onModel: (number) => { change({ record: visit.records[number], sentence: 0, reviewed: visit.text !== undefined }); show(); },
    onChoose: (sentence) => change({ sentence, reviewed: visit.text !== undefined }),
    onCorrect: (text, aside, reviewed) => change({ text, aside, reviewed }, { soon: true }),
    onAccept: accept,
    onLeave: () => strip.focus(visit.key),
    draw: async (kind, { record, sentence }, look) => (
      server.draw(kind, await readable(visit), settingsFor(visit, record.model.name), sentence, look)),
  });
  const strip = new Strip(element.querySelector(".strip"), {
    onOpen: (key) => openKey(key), onWrite: () => viewer.write(), onClear: clear, onRemove: remove, onUndo: undoRemove, keptUntil: album.keptUntil,
    fileOf: ({ key }) => readable(visits.find((entry) => entry.key === key)),
  });
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
  }

  async function take(files) {
    const isText = ({ name }) => /\.(jsonl|zip)$/i.test(name), photos = files.filter((file) => !isText(file));
    const room = Math.max(0, await album.capacity(visits.length) - visits.length), names = new Set(visits.map(({ name }) => name));
    add(photos.slice(0, room).map((file) => ({ name: nameOf(file, names), file })));
    if (photos.length > room) explain(`${photos.length - room} of ${photos.length} photos were not added. ${FULL}`);
    for (const file of files.filter(isText)) await openTexts(file);
  }

  // Texts of an earlier download return to their photos, also to those that are added later.
  async function openTexts(file) {
    try {
      const texts = await readTexts(file);
      earlier = [...texts, ...earlier];
      await identified;
      returnTexts(visits);
      const count = texts.filter((text) => !earlier.includes(text)).length, rest = earlier.length;
      explain(`${count} of ${texts.length} texts are back.` + (rest ? ` Add the photos of the other ${rest}.` : ""));
    } catch {
      explain(`${file.name} is not a captions.jsonl or captions.zip of this page.`);
    }
    if (visit) show();
  }

  // Give photos without a text their earlier texts: those of their content, then those of their name.
  function returnTexts(photos) {
    for (const find of [textOfContent, textOfName]) {
      for (const mine of photos) {
        const found = mine.text === undefined && visits.includes(mine) && find(mine);
        if (!found) continue;
        earlier = earlier.filter((text) => text !== found);
        save(mine, { text: found.text, reviewed: true });
        update(mine);
      }
    }
  }

  function textOfContent(mine) {
    const same = earlier.filter(({ content }) => content && content === mine.content);
    return same.find(({ image }) => image === imageOf(mine)) ?? same[0];
  }

  // The text of the same name, if neither the name nor the content is of another photo.
  function textOfName(mine) {
    const image = imageOf(mine), named = earlier.filter((text) => text.image === image), contents = new Set(named.map(({ content }) => content));
    const isClear = contents.size === 1 && visits.filter((entry) => imageOf(entry) === image).length === 1;
    return isClear && !visits.some(({ content }) => content && contents.has(content)) && named[0];
  }

  function add(photos) {
    if (!photos.length) return;
    explain("");
    const added = photos.map((photo) => ({ sentence: 0, ...photo, key: album.newKey(), settings: { ...settings } }));
    visits.push(...added);
    for (const mine of added) save(mine, allOf(mine));  // before they are captioned, so that a reload continues with them
    identify(added);
    open(added[0]);
    pump();
  }

  // Store the files of new photos and what identifies them, and return their earlier texts.
  function identify(added) {
    for (const mine of added) mine.isKeeping = true;
    identified = identified.then(async () => {
      for (const mine of added.filter((entry) => visits.includes(entry) && !entry.url)) {
        try {
          const file = await fileOf(mine), content = `${file.size}-${checksum(new Uint8Array(await file.arrayBuffer())).toString(16)}`;
          save(mine, { content });
          await keep(mine);
        } catch { /* it cannot be read, which its request reports */ }
      }
      for (const mine of added) mine.isKeeping = false;
      returnTexts(added);
    });
  }

  // Store a copy of a file; the whole file is sent.
  async function keep(mine) {
    if (!mine.file || mine.sample) return;
    const file = await copyToKeep(mine.file);
    mine.unsaved = { ...mine.unsaved, file };
    save(mine, {});
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
    const { key, name, url, record, records, missing, problem, phase, sentence, text, aside } = visit, photo = photoOf(visit);
    list();
    const withheld = record ? reasonToWithhold(record, visit.settings.minimum_trust) : "";
    if (problem) viewer.fail(problem, problem.again ? () => { change({ problem: undefined }); pump(); } : null, visits.includes(visit) ? () => remove(key) : null, { name, text, aside });
    else if (!record) viewer.wait({ photo, name, phase: phase ?? "Waiting …", quiet, text, aside });
    else viewer.show({ photo, name, url, record, sentence, text, aside, withheld, compared: compared(records, missing) });
  }

  let listing = null;  // many photos are done at once
  function update(mine, options) {
    if (mine === visit) show(options);
    else listing ??= setTimeout(() => { listing = null; list(); }, 50);
  }

  // The records of all models, if there are several, and the problems of those that failed.
  const compared = (records, missing = []) => (records?.length + missing.length > 1
    ? [...records.map((record) => ({ name: record.model.name, record })), ...missing] : []);

  // Change the open photo. A changed sample is added to the list.
  function change(news, { soon = false } = {}) {
    Object.assign(visit, news);
    if (!visits.includes(visit)) {
      visits.push(Object.assign(visit, { key: album.newKey() }));
      history.replaceState(stateOf(visit.key), "");
      news = allOf(visit);
      identify([visit]);
    }
    save(visit, news, soon ? 300 : 0);  // the visitor is typing
    list();
  }

  // Accept the alt text, and open the next photo to review. A photo without a text stays to review.
  function accept() {
    const { record, sentence, text } = visit;
    if (text !== undefined || (record && defaultText(record, chooseSentence(record, sentence).caption))) change({ reviewed: true });
    const listed = strip.photos, at = listed.findIndex(({ key }) => key === visit.key);
    const next = [...listed.slice(at + 1), ...listed.slice(0, at)].find(isToReview) ?? listed[at + 1];
    if (!next) return viewer.say(isToReview(visit) ? "This photo has no text yet." : "There are no more photos to review.");
    openKey(next.key);
    viewer.write();
  }

  const openKey = (key) => open(visits.find((entry) => entry.key === key));

  function remove(key) {
    const at = visits.findIndex((entry) => entry.key === key);
    if (at < 0) return;
    const [mine] = visits.splice(at, 1), next = strip.neighbour(1) ?? strip.neighbour(-1) ?? (visits[at] ?? visits[at - 1])?.key;
    cancel(mine);
    if (removed) album.remove([removed.key]);
    offerUndo(mine);
    save(mine, { removed: Date.now() });
    if (mine !== visit) list();
    else if (next) { openKey(next); strip.focus(next); } else { visit = null; list(); viewer.empty(); }
    pump();
  }

  function offerUndo(mine) {
    removed = mine;
    strip.offerUndo(mine?.name ?? null);
  }

  function undoRemove() {
    const mine = removed;
    offerUndo(null);
    insert(mine);
    mine.stored = false;  // its hour may be over
    save(mine, { ...allOf(mine), removed: undefined });
    keep(mine).catch(() => {});
    open(mine);
    strip.focus(mine.key);
    pump();
  }

  function insert(mine) {
    visits.push(mine);
    visits.sort((a, b) => a.key - b.key);
  }

  // Caption the open photo again with other settings; its text is kept.
  function again() {
    if (!visit) return;
    cancel(visit);
    change({ record: undefined, records: undefined, missing: undefined, problem: undefined, sentence: 0,
      reviewed: visit.text !== undefined, settings: { ...settings } });
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
    const follow = (sent) => {
      if (signal.aborted) return;
      mine.phase = sent === 1 ? "Captioning …" : `Sending the photo${sent ? ", " + percent(sent) : ""} …`;
      update(mine, { quiet: sent > 0 && sent < 1 });
    };
    await alone(`captioner ${mine.key}`, signal, async () => {
      await flush(mine);
      if (await isAnswered(mine) || signal.aborted) return;
      follow(mine.file ? 0 : 1);
      const answer = await ask(mine, { signal, follow }).catch((problem) => ({ problem }));
      if (signal.aborted || (answer.problem && await isAnswered(mine))) return;
      save(mine, { problem: undefined, ...answer });
      await flush(mine);  // before the next tab looks
    });
    if (signal.aborted) return;
    mine.job = null;
    update(mine);
    pump();
  }

  // Whether another tab has captioned the photo, or could not.
  async function isAnswered(mine) {
    const [stored] = await album.read([mine.key]);
    if (stored) merge(mine.key, stored);
    return Boolean(mine.record || mine.problem);
  }

  // Caption a photo with all models. Throws the problem of the first if all fail.
  async function ask(mine, { signal, follow }) {
    const file = mine.url ? null : await readable(mine);
    const answers = await Promise.allSettled(props.models.map((model, number) => (
      server.caption({ ...mine, file }, settingsFor(mine, model), { signal, follow: number ? () => {} : follow }))));
    const records = answers.map(({ value }) => value).filter(Boolean);
    if (!records.length) throw answers[0].reason;
    const missing = answers.flatMap(({ reason }, number) => (reason ? [{ name: props.models[number], problem: reason }] : []));
    return { record: records[0], records, missing: missing.length ? missing : undefined };
  }

  // Change fields of a photo, here, in the album and in the other tabs.
  function save(mine, fields, delay = 0) {
    Object.assign(mine, fields);
    mine.unsaved = { ...mine.unsaved, ...fields };
    clearTimeout(mine.saving);
    mine.saving = setTimeout(() => flush(mine), delay);
  }

  async function flush(mine) {
    clearTimeout(mine.saving);
    const fields = { ...mine.unsaved };
    if (!Object.keys(fields).length || mine.deleted) return;
    try {
      const version = await album.write(mine.key, fields, !mine.stored);
      // Deleted in another tab, while a text was being written: store the photo again.
      if (version === null && visits.includes(mine) && fields.text !== undefined) {
        mine.stored = false;
        save(mine, allOf(mine));
        return keep(mine);
      }
      Object.assign(mine, { stored: true, version });
      for (const name in fields) if (fields[name] === mine.unsaved[name]) delete mine.unsaved[name];
    } catch (error) {
      if (error?.name === "QuotaExceededError") explain(`${mine.name} is not stored. ${FULL}`);
    }
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

  const storedPhotos = () => [...visits, ...(removed ? [removed] : [])];

  // Empty the list: what this tab shows, and what can be undone.
  async function clear() {
    const keys = storedPhotos().map(({ key }) => key);
    for (const mine of storedPhotos()) { cancel(mine); mine.deleted = true; }
    visits = [];
    visit = null;
    offerUndo(null);
    explain("");
    await album.remove(keys);  // before the message, because a reload would restore them
    history.replaceState(stateOf(undefined), "");
    list();
    viewer.empty();
  }

  // Take over what another tab has changed, added or removed.
  async function refresh(keys) {
    const entries = await album.read(keys);
    keys.forEach((key, at) => merge(key, entries[at]));
    list();
    pump();
  }

  const known = (entry) => ({ ...entry, stored: true, settings: supported(entry.settings, props) });

  function merge(key, stored) {
    const mine = visits.find((entry) => entry.key === key);
    if (stored?.removed) offerUndo(stored);
    else if (removed?.key === key) offerUndo(null);
    if (!stored || stored.removed) {
      if (!mine?.stored || (!stored && mine.unsaved?.text !== undefined)) return;
      cancel(mine);
      flush(mine);
      visits.splice(visits.indexOf(mine), 1);
      if (mine !== visit) return;
      visit = null;
      const reason = album.keptUntil(key) < Date.now() ? NOT_KEPT : "The list was emptied in another tab.";
      viewer.empty(stored ? `${mine.name} was removed in another tab.` : reason);
    } else if (!mine) {
      insert(known(stored));
    } else if (stored.version >= (mine.version ?? 0)) {
      const { text, record, problem, sentence } = mine, { file, ...unsaved } = mine.unsaved ?? {};
      Object.assign(mine, known(stored), { file: mine.file ?? stored.file }, unsaved);
      if (mine !== visit || text === mine.text && sentence === mine.sentence
        && record?.caption === mine.record?.caption && problem === mine.problem) return;
      show();
      if (text !== mine.text) viewer.say("Changed in another tab.");
    }
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
    for (const entry of kept) {
      if (entry.removed) offerUndo(entry);
      else insert(known(entry));
    }
    restore();
    pump();
    album.listen(refresh);
  });
  setInterval(() => album.sweep().then(refresh, () => {}), 3600 * 1000);
  addEventListener("popstate", restore);
  const isUnsaved = ({ unsaved, isKeeping }) => isKeeping || Object.keys(unsaved ?? {}).length > 0;
  addEventListener("beforeunload", (event) => { if (storedPhotos().some(isUnsaved)) event.preventDefault(); });
  document.addEventListener("visibilitychange", () => storedPhotos().filter(isUnsaved).forEach(flush));
  const keys = element.querySelector(".keys");
  const actions = { j: () => strip.walk(1), k: () => strip.walk(-1), d: () => viewer.toggleDecorative(), p: () => viewer.togglePlain(), "?": () => keys.showModal() };
  addEventListener("keydown", (event) => {
    const isOurs = !(event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog"));
    const action = isOurs && actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  });
  element.querySelector(".show-keys").onclick = actions["?"];
  element.querySelector(".captioner").inert = false;  // its buttons work from now on
}

function cancel(mine) {
  mine.job?.abort();
  mine.job = null;
}

const imageOf = ({ url, name }) => url ?? name;
const allOf = (mine) => Object.fromEntries(FIELDS.map((name) => [name, mine[name]]));

// Run work while no other tab runs it. Browsers have locks only over https and on this machine.
async function alone(name, signal, work) {
  let begun = false;
  const begin = () => { begun = true; return work(); };
  try {
    await (navigator.locks ? navigator.locks.request(name, { signal }, begin) : begin());
  } catch (error) {
    if (signal.aborted) return;
    if (begun) throw error;
    await work();  // a frame without storage has no locks
  }
}

// The name of a file, with its path in a folder. Equal names get the name of the folder, or a number.
function nameOf(file, taken) {
  const path = file.path ?? file.name, name = path.slice(path.indexOf("/") + 1), [, stem, suffix] = /^(.*?)(\.[^./]*)?$/.exec(path);
  let free = [name, path].find((candidate) => !taken.has(candidate));
  for (let number = 2; !free; number++) if (!taken.has(`${stem} (${number})${suffix ?? ""}`)) free = `${stem} (${number})${suffix ?? ""}`;
  taken.add(free);
  return free;
}

const ofSample = (name) => ({ name, sample: name, sentence: 0 });

function ofUrl(url) {
  const { pathname, hostname } = new URL(url);
  return { name: pathname.split("/").at(-1) || hostname, url };
}

// The file or the URL of a sample, for the viewer. The record of a downloaded photo has a preview.
const photoOf = ({ file, sample }) => (sample ? server.sampleUrl(sample) : file);
