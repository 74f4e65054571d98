// The page: photos come in, are sent a few at a time, wait and are captioned. All of them are in the
// strip, one is open on the stage; Back and a reload show it again.
import * as album from "./album.js";
import { listen } from "./intake.js";
import { likely, percent } from "./sentence.js";
import * as server from "./server.js";
import { Strip } from "./strip.js";
import { Viewer } from "./viewer.js";

// A server says so of a record whose trust is below the least one that was asked for.
const abstained = ({ trust }, least) => ({
  type: "untrusted",
  title: "No caption that could be trusted",
  detail: `The best one ${trust === undefined ? "names nothing" : `is ${likely(trust)} likely to be right`}, and the search settings ask for ${percent(least)} at least.`,
});
const NOT_KEPT = "This browser has not kept the photo, and the server keeps none: choose it again.";
const TOO_MANY = `The first ${album.MOST} are taken. For more there is captioner batch on the command line.`;
const AT_ONCE = 4;  // photos under way: the server has other visitors

export function start(element, props) {
  const settings = { ...props.settings };  // beam_size, captions, style, minimum_trust, check_attention: of the next request
  // What came in, oldest first: { key, name, file, sample or address, settings, records and record, or
  // problem, sentence, head, text }. `key` is its place in the album; `record` is that of `records`, one
  // of each model, whose words are open; the last three are what the visitor has chosen and written.
  // What has neither record nor problem waits for one: `job` takes its request back, once it is under
  // way, and `phase` says how far it is.
  let visits = [];
  let visit = null;     // the one on the stage; a sample that nobody has touched is in no list
  let checking = null;  // takes back a check of words

  const [first] = props.value;
  const viewer = new Viewer(element.querySelector(".viewer"), props.drawing, {
    onModel: (number) => { change({ record: visit.records[number], sentence: 0, head: null }); show(); },
    onChoose: (sentence, head) => { change({ sentence, head }); check(); },
    onCorrect: (text) => { change({ text }, { soon: true }); },
    draw: async (kind, { chosen, head }, word, look) => server.draw(kind, await fileOf(visit), chosen, { word, head, look }),
  });
  const strip = new Strip(element.querySelector(".strip"), { onOpen: (key) => open(visits.find((each) => each.key === key)), onClear: clear });
  const showSettings = listenToSettings(element.querySelector(".search"), settings, props, again, check);
  const { explain } = listen(element, take, (sample) => add([ofSample(sample)]), props.allow_urls ? (address) => add([ofAddress(address)]) : null);

  // The place in the browser's history that this is.
  const here = () => history.state?.captioner ?? {};
  const stateOf = (key) => ({ ...history.state, captioner: { key } });

  const list = () => strip.show(visits.map((each) => ({ ...each, photo: photoOf(each) })), visit?.key);

  function take(files) {
    add(files.slice(0, album.MOST).map((file) => ({ name: file.name, file })));
    if (files.length > album.MOST) explain(TOO_MANY);
  }

  function add(photos) {
    if (!photos.length) return;
    explain("");
    const came = photos.map((photo) => ({ sentence: 0, head: null, ...photo, key: album.newKey(), settings: { ...settings } }));
    visits.push(...came);
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
    const { name, address, record, records, problem, phase, sentence, head, text } = visit, photo = photoOf(visit);
    list();
    if (problem) viewer.fail(problem, problem.again ? retry : null);
    else if (!record) viewer.wait({ photo, name, text: phase ?? "Waits its turn …", quiet });
    else { viewer.show({ photo, name, address, record, sentence, head, text, compared: compared(records) }); check(); }
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
    if (soon) mine.writing = setTimeout(() => keep(mine), 300);  // somebody is typing
    else keep(mine);
    list();
  }

  // The same photo with other settings; what was written of it stays.
  function again() {
    if (!visit) return;
    visit.job?.abort();
    checking?.abort();
    change({ job: null, record: undefined, records: undefined, problem: undefined, sentence: 0, head: null, settings: { ...settings } });
    pump();
  }

  function retry() {
    change({ problem: undefined });
    pump();
  }

  // Send what waits, the photo on the stage first.
  function pump() {
    const waiting = visits.filter((each) => !each.record && !each.problem).sort((one, other) => (other === visit) - (one === visit));
    const under = waiting.filter((each) => each.job).length;
    for (const each of waiting.filter((each) => !each.job).slice(0, AT_ONCE - under)) send(each);
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
      keep(mine);
      const ask = (model, number) => server.caption({ ...mine, file }, number ? { ...searchOf(mine.settings), model } : mine.settings, { signal, follow });
      const records = await Promise.all(props.models.map(ask)), [record] = records;
      found = record.review ? { problem: abstained(record, mine.settings.minimum_trust) } : { record, records };
    } catch (problem) {
      found = { problem };
    }
    if (signal.aborted) return;
    Object.assign(mine, found, { job: null });
    keep(mine);
    shows();
    pump();
  }

  function keep({ key, name, file, sample, address, settings, record, records, problem, sentence, head, text }) {
    if (key) album.put(key, { name, file: sample || address ? undefined : file, sample, address, settings, record, records, problem, sentence, head, text });
  }

  async function fileOf(mine) {
    return mine.file ??= mine.sample ? await server.fetchSample(mine.sample) : await server.fileOf(mine);
  }

  // The file, if it may be sent.
  async function readable(mine) {
    const file = await fileOf(mine);
    if (file.size > props.max_upload) throw server.problems.tooLarge(file.name, props.max_upload);
    await file.slice(0, 1).arrayBuffer().catch(() => { throw server.problems.unreadable(file.name); });
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
      const { words, note } = await server.check(await fileOf(mine), shown.chosen, signal);
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
    for (const each of visits) { each.job?.abort(); clearTimeout(each.writing); }
    checking?.abort();
    visits = [];
    visit = null;
    await album.clear();  // before it is said: a reload would bring them back
    history.replaceState(stateOf(undefined), "");
    list();
    viewer.empty();
  }

  // After a reload, and after Back: what this place in the history showed, or was waiting for.
  function restore() {
    const { key } = here(), kept = visits.find((each) => each.key === key);
    checking?.abort();
    visit = null;
    if (kept) return turnTo(kept);
    list();
    if (key) viewer.empty(NOT_KEPT);
    else if (first) turnTo({ ...ofSample(first.image), settings: { ...props.settings }, record: first, records: props.value });
    else viewer.empty();
  }

  album.all().then((kept) => {
    visits.unshift(...kept.map((each) => ({ ...each, settings: known(each.settings, props) })));
    restore();
    pump();
  });
  setInterval(album.sweep, 3600 * 1000);
  addEventListener("popstate", restore);
}

// The settings of the search, which are changed in place. again: for another caption; check: for the
// effect of each word. Gives what shows them as they are.
function listenToSettings(element, settings, props, again, check) {
  const sliders = [...element.querySelectorAll("input[type=range]")], [beam, captions] = sliders;
  const box = element.querySelector(".check input"), style = element.querySelector("select");
  const show = () => {
    for (const slider of sliders) {
      slider.value = settings[slider.name] ?? 0;
      element.querySelector("b." + slider.name).textContent = slider.value;
    }
    box.checked = settings.check_attention;
    style.value = settings.style;
  };
  style.append(...props.styles.map((name) => new Option(name, name)));
  element.querySelector(".styles").hidden = props.styles.length < 2;
  element.querySelector(".trusts").hidden = !("minimum_trust" in props.settings);
  style.onchange = () => { settings.style = style.value; again(); };
  box.onchange = () => { settings.check_attention = box.checked; check(); };
  beam.max = props.most;
  captions.max = Math.min(10, props.most);
  for (const slider of sliders) {
    slider.oninput = () => {
      settings[slider.name] = +slider.value;
      // No more sentences than are followed.
      if (slider === beam) settings.captions = Math.min(settings.captions, settings.beam_size);
      else settings.beam_size = Math.max(settings.captions, settings.beam_size);
      show();
    };
    slider.onchange = again;
  }
  show();
  return show;
}

// Of the settings that were kept those that the server knows, and else its own: it may have started
// again with another model, which has other styles, or none, and no trust.
function known(kept, { settings, styles }) {
  const values = Object.keys(settings).map((name) => [name, kept?.[name] ?? settings[name]]);
  return { ...Object.fromEntries(values), ...(styles.includes(kept?.style) ? {} : { style: settings.style }) };
}

// Of the settings what every model has: not a style, nor a trust.
const searchOf = ({ beam_size, captions, check_attention }) => ({ beam_size, captions, check_attention });

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
