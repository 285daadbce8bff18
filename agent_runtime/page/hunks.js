// Accepts and rejects the hunks of a diff, one by one, and makes the text that comes of it.

const RANGE = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/;
const LINES = /[^\n]*\n|[^\n]+$/g;

/** The hunks of one file's merge, all accepted at first. */
export class Hunks {
  #before;
  #after;
  #merged;
  #ranges;
  #rejected = new Set();

  constructor(before, after, diff) {
    this.#before = before.match(LINES) ?? [];
    this.#after = after.match(LINES) ?? [];
    this.#merged = after;
    this.#ranges = diff.split("\n").map((line) => RANGE.exec(line)).filter(Boolean).map(rangeOf);
  }

  /**
   * The hunks of an answer for a text, or null where they cannot be taken apart: several files, a move, a file that is
   * removed, or line numbers that are not those of the texts (so that nobody gets a text that the diff does not show).
   */
  static of(answer, before) {
    const [file] = answer.files;
    if (answer.status !== "merged" || answer.files.length !== 1 || file.move_to) return null;
    if (typeof answer.merged !== "string" || !file.diff) return null;
    const hunks = new Hunks(before, answer.merged, file.diff);
    return hunks.#haveEqualGaps() ? hunks : null;
  }

  get count() {
    return this.#ranges.length;
  }

  get numAccepted() {
    return this.count - this.#rejected.size;
  }

  get areAllAccepted() {
    return this.#rejected.size === 0;
  }

  isAccepted(at) {
    return !this.#rejected.has(at);
  }

  set(at, isAccepted) {
    if (isAccepted) this.#rejected.delete(at);
    else this.#rejected.add(at);
  }

  /** The file with the accepted hunks, in its own line ends. */
  get text() {
    return this.areAllAccepted ? this.#merged : this.#join((at) => this.isAccepted(at));
  }

  #join(isTaken) {
    const parts = [];
    let at = 0;
    this.#ranges.forEach(({ before, after }, index) => {
      parts.push(...this.#before.slice(at, before[0]));
      parts.push(...(isTaken(index) ? this.#after.slice(...after) : this.#before.slice(...before)));
      at = before[1];
    });
    return [...parts, ...this.#before.slice(at)].join("");
  }

  /** Whether the texts are the same between the hunks, each where the diff says. */
  #haveEqualGaps() {
    let [left, right] = [0, 0];
    const ends = { before: [this.#before.length], after: [this.#after.length] };
    return [...this.#ranges, ends].every(({ before, after }) => {
      const isEqual = this.#before.slice(left, before[0]).join("") === this.#after.slice(right, after[0]).join("");
      [left, right] = [before[1], after[1]];
      return isEqual;
    });
  }
}

/** Lines `[from, to)` from 0 in both texts; an empty range stands behind the line that it names. */
function rangeOf([, before, numBefore = "1", after, numAfter = "1"]) {
  const lines = (start, number) => {
    const from = Number(number) ? Number(start) - 1 : Number(start);
    return [from, from + Number(number)];
  };
  return { before: lines(before, numBefore), after: lines(after, numAfter) };
}
