// Run the model in a worker. It receives photos and posts progress and records.
import * as ort from "./ort/ort.wasm.min.mjs";
import { Search } from "./search.js";
import { boxOf, openPhoto, squareOf } from "./square.js";
import { pool, readTensors, Trust } from "./trust.js";

const here = (name) => new URL(name, import.meta.url).href;
// Scripts without spaces between words.
const UNSPACED = /^[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\u{20000}-\u{3ffff}]/u;
let ready = null, received = 0;  // a promise of the model; the number of photos

async function fetchBytes(name) {
  const answer = await fetch(here("../" + name));
  if (!answer.ok) throw new Error(`${name} cannot be loaded (status ${answer.status}).`);
  return answer;
}

async function load() {
  const packed = await fetchBytes("browser/ort/ort-wasm-simd-threaded.wasm.gz");
  const description = fetchBytes("captioner.json").then((answer) => answer.json());
  const [about, statistics, binary, ...graphs] = await Promise.all([
    description,
    description.then(async (about) => about.trust && (await fetchBytes("trust.safetensors")).arrayBuffer()),
    new Response(packed.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer(),
    ...["encoder.onnx", "step.onnx"].map((name) => fetchBytes(name).then((answer) => answer.arrayBuffer())),
  ]);
  ort.env.wasm.wasmBinary = binary;
  ort.env.wasm.wasmPaths = { mjs: here("ort/ort-wasm-simd-threaded.mjs") };
  // Threads need shared memory, which only isolated pages have.
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
  ort.env.logLevel = "error";
  const encoder = await ort.InferenceSession.create(new Uint8Array(graphs[0]), { executionProviders: ["wasm"] });
  const step = await ort.InferenceSession.create(new Uint8Array(graphs[1]), { executionProviders: ["wasm"] });
  const trust = about.trust && new Trust(about.trust, readTensors(statistics));
  const model = { about, encoder, trust, search: new Search(about, (inputs) => step.run(inputs), ort.Tensor, trust) };
  // The first run is slow, so do it before the first photo.
  if (!received) await write(model, new Uint8Array(3 * about.transform.size ** 2), 1);
  return model;
}

// The best sentences for a square, and the photo's familiarity.
async function write({ about, encoder, search, trust }, square, captions) {
  const { size } = about.transform, pixels = new ort.Tensor("uint8", square, [1, 3, size, size]);
  const encoded = await encoder.run({ pixels }), state = Object.fromEntries(about.state.map((part) => [part, encoded[part]]));
  const style = about.generation.style || about.styles[0], beam = Math.max(about.generation.beam_size, captions);
  const pooled = trust && pool(encoded.features), familiarity = trust?.familiarity(pooled);
  const sentences = await search.best(state, pooled, { beam, captions, style });
  return { familiarity, sentences: trust ? sentences.map((sentence) => trust.judge(sentence, pooled, familiarity)) : sentences };
}

async function caption({ key, photo, name, captions }) {
  const model = await (ready ??= load()), { about } = model;
  postMessage({ key, phase: "Captioning …" });
  const bitmap = await openPhoto(photo), style = about.generation.style || about.styles[0];
  const box = boxOf(about.transform, bitmap.width, bitmap.height).map((edge) => round(edge, 6));
  const square = squareOf(bitmap, about.transform);
  bitmap.close();
  const { familiarity, sentences } = await write(model, square, captions);
  const [best, ...alternatives] = sentences.map((sentence) => describe(about, sentence, box));
  return {
    image: name, ...best, ...(familiarity === undefined ? {} : { familiarity: round(familiarity, 4) }), ...(style ? { style } : {}),
    ...(familiarity < about.trust?.unfamiliar ? { unfamiliar: true } : {}),
    alternatives, model: { name: about.name, version: about.version, dtype: "float32" },
  };
}

const round = (value, digits) => Math.round(value * 10 ** digits) / 10 ** digits;

function describe(about, { tokens, logs, attention, gates, score, trusts = [], trust, doubtful = [] }, box) {
  const words = logs.map((log, at) => {
    const word = { word: about.vocabulary[tokens[at]], probability: round(Math.exp(log), 4) };
    if (trusts[at] !== undefined) word.trust = round(trusts[at], 4);
    if (doubtful[at]) word.doubtful = true;
    if (gates.length) word.gate = round(gates[at], 4);
    if (attention.length) word.attention = { ...about.grid, box, weights: Array.from(attention[at], (weight) => round(weight, 6)) };
    return word;
  });
  return { caption: join(about.tokenizer, words.map(({ word }) => word)), score: round(score, 4), ...(trust === undefined ? {} : { trust: round(trust, 4) }), words };
}

function join(tokenizer, words) {
  if (tokenizer === "words") return words.join(" ").replace(/ (n't|'(?:s|m|d|ll|re|ve))\b/g, "$1");
  return words.reduce((text, word, at) => text + (at && !UNSPACED.test(words[at - 1]) && !UNSPACED.test(word) ? " " : "") + word, "");
}

// Photos are captioned one after another.
let before = Promise.resolve();
onmessage = ({ data }) => {
  if (data.photo) received++;
  before = before.then(async () => {
    try {
      if (data.photo) postMessage({ key: data.key, record: await caption(data) });
      else await (ready ??= load());
    } catch (error) {
      if (!ready || (await ready.catch(() => null)) === null) ready = null;
      postMessage({ key: data.key, problem: { title: ready ? "The photo cannot be read" : "The model cannot be loaded", detail: reason(error, data.name) } });
    }
  });
};

function reason(error, name) {
  if (error.name === "InvalidStateError") return `This browser cannot read ${name || "the file"}. Save it as JPEG, PNG or WebP.`;
  return error.message || String(error);
}
