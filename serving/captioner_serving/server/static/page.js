// The page: a photo comes in, is sent, waits and is captioned; Back and a reload show it again. The
// newest photo wins, and what was asked for before it is taken back.
import * as album from "./album.js";
import { listen } from "./intake.js";
import { percent } from "./sentence.js";
import * as server from "./server.js";
import { Viewer } from "./viewer.js";

// A server says so of a record whose trust is below the least one that was asked for.
const abstained = ({ trust = 0 }, least) => ({
  title: "No caption that could be trusted",
  detail: `The best one is ${percent(Math.max(0.01, trust))} likely to be right, and the search settings ask for ${percent(least)} at least.`,
});
const NOT_KEPT = "This browser has not kept the photo, and the server keeps none: choose it again.";

export function start(element, props) {
  const settings = { ...props.settings };  // beam_size, captions, style, minimum_trust, check_attention: of the next request
  // What is on the page: { key, name, file or sample, photo, settings, record }. `key` is its place in
  // the album, once it is there; `photo` what the viewer shows, the file or the sample's address;
  // without a record it waits for one.
  let visit = null;
  let running = null;  // takes back what is under way

  const viewer = new Viewer(element.querySelector(".viewer"), props.drawing, {
    onChoose: (sentence, head) => { place({ sentence, head }); check(); },
    draw: async (kind, { chosen, head }, word, look) => server.draw(kind, await fileOf(visit), chosen, { word, head, look }),
  });
  const showSettings = listenToSettings(element.querySelector(".search"), settings, props, again, check);
  const forgetReason = listen(element, take, (sample) => begin(ofSample(sample)));

  function stop() {
    forgetReason();
    running?.abort();
    running = new AbortController();
    return running.signal;
  }

  // Where this place in the browser's history leads: { key, sentence, head }.
  const here = () => history.state?.captioner ?? {};
  const place = (change) => history.replaceState({ ...history.state, captioner: { ...here(), ...change } }, "");

  function fail(problem) {
    stop();
    visit = null;
    viewer.fail(problem, null);
  }

  async function take(files) {
    if (files.length > 1) return fail(server.problems.many(files.length));
    const [file] = files;
    if (!file) return;
    if (file.size > props.max_upload) return fail(server.problems.tooLarge(file.name, props.max_upload));
    try {
      await file.slice(0, 1).arrayBuffer();
    } catch {
      return fail(server.problems.unreadable(file.name));
    }
    begin({ name: file.name, file, photo: file });
  }

  function begin(fresh) {
    visit = { ...fresh, key: album.newKey() };
    history.pushState({ ...history.state, captioner: { key: visit.key } }, "");
    send();
  }

  // The same photo with other settings.
  function again() {
    if (!visit) return;
    visit = { ...visit, record: undefined };
    place({ sentence: 0, head: null });
    send();
  }

  async function send() {
    const mine = visit, signal = stop();
    const follow = (news) => {
      if (!signal.aborted) viewer.wait({ photo: mine.photo, name: mine.name, text: phaseOf(news), quiet: "sent" in news });
    };
    mine.settings = { ...settings };
    follow(mine.file ? {} : { ahead: 0 });
    try {
      await fileOf(mine);
      if (signal.aborted) return;
      keep(mine);
      mine.record = await server.caption(mine.file, mine.settings, { signal, follow });
      if (signal.aborted) return;
      keep(mine);
      show();
    } catch (problem) {
      if (!signal.aborted) viewer.fail(problem, problem.again ? send : null);
    }
  }

  function keep(mine) {
    const { name, file, settings, record } = mine;
    place({ key: (mine.key ??= album.newKey()) });
    album.put(mine.key, { name, file, settings, record });
  }

  async function fileOf(mine) {
    return (mine.file ??= await server.fetchSample(mine.sample));
  }

  function show() {
    const { photo, name, record } = visit, { sentence, head } = here();
    if (record.review) return viewer.fail(abstained(record, visit.settings.minimum_trust), null);
    viewer.show({ photo, name, record, sentence, head });
    check();
  }

  // What the words of the sentence on the page lost without the places that they looked at, where the
  // visitor wants to know it and does not yet.
  async function check() {
    const mine = visit, { shown } = viewer;
    if (!settings.check_attention || !shown || shown.chosen.words.every((word) => !word.attention || word.effect !== undefined)) return;
    const signal = stop();
    viewer.say("Checking each word …");
    try {
      const { words, note } = await server.check(await fileOf(mine), shown.chosen, signal);
      if (signal.aborted) return;
      const { record } = mine, { sentence } = shown;
      Object.assign(sentence ? record.alternatives[sentence - 1] : record, { words, note });
      mine.settings = { ...settings };
      keep(mine);
      viewer.show({ ...viewer.shown, word: viewer.word });
      viewer.say("Each word is checked.");
    } catch (problem) {
      if (!signal.aborted) viewer.say(`${problem.title}: ${problem.detail}`);
    }
  }

  // After a reload, and after Back: what this place in the history showed, or was waiting for.
  async function restore() {
    const signal = stop(), { key } = here();
    visit = null;
    if (key) {
      const kept = await album.find(key);
      if (signal.aborted) return;
      if (!kept) return viewer.empty(NOT_KEPT);
      visit = { ...kept, key, photo: kept.file };
    } else if (props.value) {
      visit = { ...ofSample(props.value.image), settings: props.settings, record: props.value };
    } else {
      return viewer.empty();
    }
    const { style } = visit.settings;  // of a server that has started again with another model
    Object.assign(settings, visit.settings, props.styles.includes(style) ? {} : { style: props.settings.style });
    showSettings();
    if (visit.record) show();
    else send();
  }

  album.sweep();
  setInterval(album.sweep, 3600 * 1000);
  addEventListener("popstate", restore);
  restore();
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

const ofSample = (name) => ({ name, sample: name, photo: server.addressOf(name) });

function phaseOf({ sent, ahead }) {
  if (ahead === 1) return "1 photo comes before this one …";
  if (ahead > 1) return ahead + " photos come before this one …";
  if (ahead === 0) return "Looking at the photo …";
  return "Sending the photo" + (sent > 0 && sent < 1 ? ", " + percent(sent) : "") + " …";
}
