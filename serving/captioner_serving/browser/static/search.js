// Beam search over the exported step, as captioner/generation/beam_search.py and caption.py have it.
const PAD = 0, START = 1, END = 2, UNK = 3;
const NOTHING = { tokens: [], logs: [], attention: [], gates: [], score: -Infinity };

export class Search {
  // about: captioner.json; step: takes and returns tensors by name; Tensor: onnxruntime's; trust: a Trust or null.
  constructor(about, step, Tensor, trust) {
    Object.assign(this, { about, step, Tensor, trust });
    this.around = about.vocabulary.indexOf(about.generation.different_around);
  }

  // state: of one photo, by name; pooled: see pool(); follow(sentence): the likeliest so far, after every word. Returns the
  // best sentences: { tokens, logs, attention, gates, score }, the last token being the end.
  async best(state, pooled, { beam, captions, style }, follow) {
    const { generation, vocabulary } = this.about, { length_penalty: penalty, maximum_length: most } = generation;
    const chooses = this.trust?.hasConsensus && generation.consensus && beam > 1;
    const places = chooses ? beam : captions, start = style ? vocabulary.indexOf(`<start ${style}>`) : START;
    let tokens = [start], totals = [0], paths = [NOTHING], pool = Array(places).fill(NOTHING);
    for (let step = 0; step <= most; step++) {
      const found = await this.#advance(tokens, totals, paths, beam, state);
      // After the most words only the end may come.
      const ending = step < most ? found.ending : totals.map((total, k) => Math.fround(total + found.end_logs[k]));
      ending.forEach((total, place) => {
        if (total === -Infinity) return;
        const path = paths[step < most ? found.ended[place] : place];
        pool.push({ ...path, tokens: [...path.tokens, END], score: Math.fround(total / Math.fround((step + 1) ** penalty)) });
      });
      pool = pool.sort((one, other) => other.score - one.score).slice(0, places);
      if (step === most || (beam === 1 && pool[0].tokens.length)) break;
      paths = found.parents.map((parent, k) => this.#longer(paths[parent], found, parent, k));
      ({ tokens, totals } = found);
      follow?.(pool[0].score > totals[0] / (step + 1) ** penalty ? pool[0] : paths[0]);
      // The best that is still to come has the probability 1, and as many words as may be.
      if (Math.fround(totals[0] / Math.fround((most + 1) ** penalty)) <= pool[places - 1].score) break;
    }
    const sentences = pool.filter((one) => one.tokens.length);
    return (chooses ? this.trust.choose(sentences, pooled) : sentences).slice(0, captions);
  }

  // Run a step, and put the decoder's next state into `state`.
  async #advance(tokens, totals, paths, beam, state) {
    const { Tensor } = this, integers = (list, shape) => new Tensor("int64", BigInt64Array.from(list, BigInt), shape);
    const rows = paths.map((path) => this.#forbidden(path.tokens)), longest = Math.max(...rows.map((row) => row.length));
    const forbidden = rows.flatMap((row) => [...row, ...Array(longest - row.length).fill(PAD)]);
    const given = await this.step({
      tokens: integers(tokens, [1, tokens.length]),
      totals: new Tensor("float32", Float32Array.from(totals), [1, totals.length]),
      forbidden: integers(forbidden, [1, rows.length, longest]),
      beam: integers([beam], []),
      ...state,
    });
    for (const name of Object.keys(state)) if (given["next_" + name]) state[name] = given["next_" + name];
    const found = { attention: given.attention, gate: given.gate };
    for (const name of ["parents", "logs", "ending", "ended", "end_logs"]) found[name] = Array.from(given[name].data, Number);
    for (const name of ["tokens", "totals"]) found[name] = Array.from(given["next_" + name].data, Number);
    return found;
  }

  #forbidden(said) {
    const { generation, silent, tokenizer } = this.about, n = generation.no_repeat_ngram, never = [...silent, UNK];
    if (said.length < generation.minimum_length) never.push(END);
    if (n && said.length) {
      const last = said.slice(said.length - n + 1);
      for (let at = 0; at + n <= said.length; at++) if (last.every((word, i) => said[at + i] === word)) never.push(said[at + n - 1]);
      if (tokenizer !== "characters") never.push(said.at(-1));
    }
    if (said.length > 1 && said.at(-1) === this.around) never.push(said.at(-2));
    return never;
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
