// Which sentence the people who describe a photo would most agree with, as captioner/trust/consensus.py has it.
const ORDERS = [1, 2];

export class Consensus {
  // known: what captioner.json has of it; slopes: Int8Array, as many for each n-gram as a cell has features.
  constructor(known, slopes) {
    Object.assign(this, known, { slopes, rarest: Math.max(...known.rarity) });
    this.rows = new Map(known.grams.map((gram, row) => [gram.join(" "), row]));
  }

  // Put sentences in order for a photo whose grid is `features`, a tensor (1, L, D).
  choose(sentences, { data, dims: [, cells, width] }) {
    const offset = this.middle.map((middle, at) => {
      let sum = 0;
      for (let cell = 0; cell < cells; cell++) sum += data[cell * width + at];
      return sum / cells - middle;
    });
    const expected = new Map(sentences.map((one) => [one, this.#expect(offset, one.tokens.slice(0, -1))]));
    return [...sentences].sort((one, other) => expected.get(other) - expected.get(one));
  }

  // The CIDEr that is to be expected, by how often people would say its n-grams.
  #expect(offset, tokens) {
    let total = 0;
    for (const order of ORDERS) {
      const counts = new Map();
      for (let at = 0; at + order <= tokens.length; at++) {
        const gram = tokens.slice(at, at + order).join(" ");
        counts.set(gram, (counts.get(gram) ?? 0) + 1);
      }
      let squares = 0, agreed = 0;
      for (const [gram, count] of counts) {
        const row = this.rows.get(gram), weight = count * (this.rarity[row] ?? this.rarest);
        squares += weight ** 2;
        if (row !== undefined) agreed += weight * (this.usual[row] + this.scales[row] * this.#more(row, offset));
      }
      total += squares ? agreed / Math.sqrt(squares) : 0;
    }
    return total / ORDERS.length;
  }

  #more(row, offset) {
    const first = row * offset.length;
    return offset.reduce((sum, value, at) => sum + value * this.slopes[first + at], 0);
  }
}
