// Caption a photo with an exported model in Node.js. Prints the same caption as `captioner caption`.
//   captioner export --to captions && npm install onnxruntime-node sharp
//   node onnx.mjs captions photo.jpg
import { readFile } from "node:fs/promises";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { InferenceSession, Tensor } from "onnxruntime-node";
import sharp from "sharp";

const [folder, photo] = process.argv.slice(-2), file = (name) => resolve(folder, name);
const { Search } = await import(pathToFileURL(file("browser/search.js")));
const { pool, readTensors, Trust } = await import(pathToFileURL(file("browser/trust.js")));
const about = JSON.parse(await readFile(file("captioner.json"), "utf8"));
const [encoder, step] = await Promise.all(["encoder.onnx", "step.onnx"].map((name) => InferenceSession.create(file(name))));

// The transform `squash`: rotate the photo by EXIF, put it on white, resize it to uint8 (1, 3, size, size).
const { size } = about.transform, cells = size * size, pixels = new Uint8Array(3 * cells);
const image = sharp(photo).rotate().flatten({ background: "white" }).toColourspace("srgb");
const rgb = await image.resize(size, size, { fit: "fill", kernel: "linear" }).raw().toBuffer();
rgb.forEach((value, at) => (pixels[(at % 3) * cells + Math.floor(at / 3)] = value));

// The encoder returns the state of the first step. The search runs step.onnx until it finds the sentence.
const encoded = await encoder.run({ pixels: new Tensor("uint8", pixels, [1, 3, size, size]) });
const state = Object.fromEntries(about.state.map((name) => [name, encoded[name]]));
const trust = about.trust && new Trust(about.trust, readTensors((await readFile(file("trust.safetensors"))).buffer));
const search = new Search(about, (inputs) => step.run(inputs), Tensor, trust);
const { beam_size: beam, style } = about.generation;
const [best] = await search.best(state, trust && pool(encoded.features), { beam, captions: 1, style: style || about.styles[0] });
console.log(best.tokens.slice(0, -1).map((token) => about.vocabulary[token]).join(" "));
