// Beam search with the exported step, like captioner/generation/beam_search.py and the exported caption.py.
const PAD = 0, START = 1, END = 2, UNK = 3;
const EMPTY = { tokens: [], logs: [], attention: [], gates: [], score: -Infinity };

export class Search {
  // about: captioner.json. step: a function of tensors by name. Tensor: the class of onnxruntime. trust: a Trust or null.
  constructor(about, step, Tensor, trust) {
    Object.assign(this, { about, step, Tensor, trust });
    this.around = about.vocabulary.indexOf(about.generation.no_repeat_around);
  }

  // state: tensors of a photo by name. pooled: see pool(). Returns the best sentences: { tokens, logs, attention, gates,
  // score }; the last token is END.
  async best(state, pooled, { beam, captions, style }) {
    const { generation, vocabulary } = this.about, { length_penalty: penalty, maximum_length: most } = generation;
    const chooses = this.trust?.hasConsensus && generation.consensus && beam > 1;
    const places = chooses ? beam : captions, start = style ? vocabulary.indexOf(`<start ${style}>`) : START;
    let tokens = [start], totals = [0], paths = [EMPTY], pool = Array(places).fill(EMPTY);
    for (let step = 0; step <= most; step++) {
      const next = await this.#advance(tokens, totals, paths, beam, state);
      // After the maximum length only END is allowed.
      const ending = step < most ? next.ending : totals.map((total, k) => Math.fround(total + next.end_logs[k]));
      ending.forEach((total, place) => {
        if (total === -Infinity) return;
        const path = paths[step < most ? next.ended[place] : place];
        pool.push({ ...path, tokens: [...path.tokens, END], score: Math.fround(total / Math.fround((step + 1) ** penalty)) });
      });
      pool = pool.sort((a, b) => b.score - a.score).slice(0, places);
      if (step === most || (beam === 1 && pool[0].tokens.length)) break;
      paths = next.parents.map((parent, k) => this.#longer(paths[parent], next, parent, k));
      ({ tokens, totals } = next);
      // Stop if even a continuation with probability 1 and the maximum length cannot be better.
      if (Math.fround(totals[0] / Math.fround((most + 1) ** penalty)) <= pool[places - 1].score) break;
    }
    const sentences = pool.filter((path) => path.tokens.length);
    return (chooses ? this.trust.choose(sentences, pooled) : sentences).slice(0, captions);
  }

  // Run a step, and store the next state of the decoder in `state`.
  async #advance(tokens, totals, paths, beam, state) {
    const { Tensor } = this, integers = (list, shape) => new Tensor("int64", BigInt64Array.from(list, BigInt), shape);
    const rows = paths.map((path) => this.#forbidden(path.tokens)), longest = Math.max(...rows.map((row) => row.length));
    const forbidden = rows.flatMap((row) => [...row, ...Array(longest - row.length).fill(PAD)]);
    const outputs = await this.step({
      tokens: integers(tokens, [1, tokens.length]),
      totals: new Tensor("float32", Float32Array.from(totals), [1, totals.length]),
      forbidden: integers(forbidden, [1, rows.length, longest]),
      beam: integers([beam], []),
      ...state,
    });
    for (const name of Object.keys(state)) if (outputs["next_" + name]) state[name] = outputs["next_" + name];
    const next = { attention: outputs.attention, gate: outputs.gate };
    for (const name of ["parents", "logs", "ending", "ended", "end_logs"]) next[name] = Array.from(outputs[name].data, Number);
    for (const name of ["tokens", "totals"]) next[name] = Array.from(outputs["next_" + name].data, Number);
    return next;
  }

  #forbidden(tokens) {
    const { generation, silent, tokenizer } = this.about, n = generation.no_repeat_ngram, forbidden = [...silent, UNK];
    if (tokens.length < generation.minimum_length) forbidden.push(END);
    if (n && tokens.length) {
      const last = tokens.slice(tokens.length - n + 1);
      for (let at = 0; at + n <= tokens.length; at++) if (last.every((word, i) => tokens[at + i] === word)) forbidden.push(tokens[at + n - 1]);
      if (tokenizer !== "characters") forbidden.push(tokens.at(-1));
    }
    if (tokens.length > 1 && tokens.at(-1) === this.around) forbidden.push(tokens.at(-2));
    return forbidden;
  }

  #longer(path, { attention, gate, tokens, logs }, parent, k) {
    const cells = attention?.dims[2];
    return {
      ...path,
      tokens: [...path.tokens, tokens[k]],
      logs: [...path.logs, logs[k]],
      attention: attention ? [...path.attention, attention.data.slice(parent * cells, (parent + 1) * cells)] : [],
      gates: gate ? [...path.gates, gate.data[parent]] : [],
    };
  }
}
