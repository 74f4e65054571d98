// Trust, familiarity and consensus, like captioner/trust, from the model's trust file.
const ARRAYS = { I8: Int8Array, I32: Int32Array, I64: BigInt64Array, F16: Uint16Array, F32: Float32Array, F64: Float64Array };
const ORDERS = [1, 2];             // lengths of n-grams
const FLAT = 10, LEAST = 1e-3;     // as in familiarity.py and trust.py

// The arrays of a safetensors file by name; float16 becomes float32, int64 becomes int32.
export function readTensors(buffer) {
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8))), arrays = {};
  delete header.__metadata__;
  for (const [name, { dtype, data_offsets: [from, to] }] of Object.entries(header)) {
    const values = new ARRAYS[dtype](buffer.slice(start + from, start + to));
    arrays[name] = dtype === "F16" ? Float32Array.from(values, single) : dtype === "I64" ? Int32Array.from(values, Number) : values;
  }
  return arrays;
}

function single(half) {
  const exponent = (half >> 10) & 31, fraction = half & 1023, sign = half >> 15 ? -1 : 1;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

const sigmoid = (value) => (1 + Math.tanh(value / 2)) / 2;

// The share of `sorted` below a value, linear between its entries.
function rank(value, sorted) {
  const last = sorted.length - 1;
  if (!(value > sorted[0])) return 0;
  if (value >= sorted[last]) return 1;
  let at = last;
  while (sorted[at] > value) at--;
  return (at + (value - sorted[at]) / (sorted[at + 1] - sorted[at])) / last;
}

// The mean of each feature over the cells of a grid (1, L, D), and the mean of their standard deviations.
export function pool({ data, dims: [, cells, width] }) {
  const mean = new Float64Array(width);
  let spread = 0;
  for (let at = 0; at < width; at++) {
    let sum = 0, squares = 0;
    for (let cell = 0; cell < cells; cell++) sum += data[cell * width + at];
    mean[at] = sum / cells;
    for (let cell = 0; cell < cells; cell++) squares += (data[cell * width + at] - mean[at]) ** 2;
    spread += Math.sqrt(squares / cells) / width;
  }
  return { mean, spread };
}

// Dot product of an offset (D) with a column of a matrix (D, columns).
function product(offset, matrix, columns, column) {
  return offset.reduce((sum, value, at) => sum + value * matrix[at * columns + column], 0);
}

export class Trust {
  // limits: `trust` of captioner.json; arrays: see readTensors.
  constructor(limits, arrays) {
    Object.assign(this, { limits, arrays });
    const grams = arrays["consensus.grams"] ?? [];
    this.rows = new Map(Array.from({ length: grams.length / 2 }, (_, row) => [[...grams.slice(2 * row, 2 * row + 2)].filter((token) => token >= 0).join(" "), row]));
    this.rarest = (arrays["consensus.rarity"] ?? []).reduce((most, rarity) => Math.max(most, rarity), 0);
  }

  familiarity({ mean, spread }) {
    const { "familiarity.mean": middle, "familiarity.directions": directions, "familiarity.widths": widths, "familiarity.rest": [rest],
      "familiarity.quantiles": quantiles, "familiarity.spreads": spreads } = this.arrays;
    const offset = mean.map((value, at) => value - middle[at]), along = Array.from(widths, (_, k) => product(offset, directions, widths.length, k) ** 2);
    const beside = offset.reduce((sum, value) => sum + value ** 2, 0) - along.reduce((sum, square) => sum + square, 0);
    const distance = Math.sqrt(along.reduce((sum, square, k) => sum + square / widths[k], 0) + Math.max(beside, 0) / rest);
    return Math.min(1 - rank(distance, quantiles), FLAT * rank(spread, spreads));
  }

  // The sentence with `trusts` of its words (undefined without a claim), its `trust`, and which words are `doubtful`.
  judge(sentence, { mean }, familiarity) {
    const { word: [constant, ...slopes], caption, "sight.kinds": kinds, "sight.nouns": nouns, "sight.shares": usual, "sight.slopes": matrix, "sight.middle": middle } = this.arrays;
    const { doubtful, doubtful_subject, unfamiliar } = this.limits, offset = mean.map((value, at) => value - middle[at]);
    const words = sentence.tokens.slice(0, -1).map((token, at) => {
      const kind = kinds[token];
      if (kind < 0) return undefined;
      const share = usual[kind] + product(offset, matrix, usual.length, kind);
      const clues = [Math.log(Math.max(share, LEAST)), Math.log(Math.max(usual[kind], LEAST)), sentence.logs[at]];
      return Math.max(sigmoid(clues.reduce((sum, clue, i) => sum + clue * slopes[i], constant)), 1e-6);
    });
    const claims = words.filter((trust) => trust !== undefined), subject = words.findIndex((trust, at) => trust !== undefined && nouns?.[sentence.tokens[at]] > 0);
    const whole = claims.length ? sigmoid(caption[0] + caption[1] * claims.reduce((sum, trust) => sum + Math.log(trust), 0)) : undefined;
    return {
      ...sentence, trusts: words, trust: whole === undefined || familiarity >= unfamiliar ? whole : Math.min(whole, familiarity),
      doubtful: words.map((trust, at) => trust < (at === subject ? doubtful_subject : doubtful)),
    };
  }

  // Sort sentences by expected CIDEr, best first.
  choose(sentences, { mean }) {
    const offset = mean.map((value, at) => value - this.arrays["consensus.middle"][at]);
    const expected = new Map(sentences.map((sentence) => [sentence, this.#expect(offset, sentence.tokens.slice(0, -1))]));
    return [...sentences].sort((first, second) => expected.get(second) - expected.get(first));
  }

  get hasConsensus() { return this.rows.size > 0; }

  #expect(offset, tokens) {
    const { "consensus.rarity": rarity, "consensus.usual": usual, "consensus.scales": scales, "consensus.slopes": slopes } = this.arrays;
    let total = 0;
    for (const order of ORDERS) {
      const counts = new Map();
      for (let at = 0; at + order <= tokens.length; at++) {
        const gram = tokens.slice(at, at + order).join(" ");
        counts.set(gram, (counts.get(gram) ?? 0) + 1);
      }
      let squares = 0, agreed = 0;
      for (const [gram, count] of counts) {
        const row = this.rows.get(gram), weight = count * (rarity[row] ?? this.rarest);
        squares += weight ** 2;
        if (row === undefined) continue;
        const more = offset.reduce((sum, value, at) => sum + value * slopes[row * offset.length + at], 0);
        agreed += weight * (usual[row] + scales[row] * more);
      }
      total += squares ? agreed / Math.sqrt(squares) : 0;
    }
    return total / ORDERS.length;
  }
}
