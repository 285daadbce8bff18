// Finds the words that differ between a removed line and the line that came for it.

const WORDS = /[\p{L}\p{N}_]+|\s+|[^]/gu;
const MOST_WORDS = 200;
const WINDOW = 8;
/** Lines that share less than this of their characters are different lines: marks in them would only be noise. */
const LEAST_ALIKE = 0.4;

/**
 * The marks of two lines: ranges `[from, to)` of characters that the other one has not, and how much they share, 0 to 1.
 */
export function compareLines(before, after) {
  const left = before.match(WORDS) ?? [];
  const right = after.match(WORDS) ?? [];
  let start = 0;
  while (start < Math.min(left.length, right.length) && left[start] === right[start]) start++;
  let [leftEnd, rightEnd] = [left.length, right.length];
  while (leftEnd > start && rightEnd > start && left[leftEnd - 1] === right[rightEnd - 1]) [leftEnd, rightEnd] = [leftEnd - 1, rightEnd - 1];
  const [kept, keptRight] = commonWords(left.slice(start, leftEnd), right.slice(start, rightEnd));
  const isKept = (at, end, inside) => at < start || at >= end || inside.has(at - start);
  const marks = { before: [], after: [], alike: 0 };
  const shared = collect(left, (at) => isKept(at, leftEnd, kept), marks.before);
  collect(right, (at) => isKept(at, rightEnd, keptRight), marks.after);
  const size = (before + after).replace(/\s/g, "").length;
  marks.alike = size ? (2 * shared) / size : 1;
  return marks;
}

/** Puts the ranges of the words that are not kept into `ranges`; gives the number of kept characters but spaces. */
function collect(words, isKept, ranges) {
  let at = 0;
  let kept = 0;
  words.forEach((word, index) => {
    if (isKept(index)) kept += word.trim().length;
    else if (ranges.at(-1)?.[1] === at) ranges.at(-1)[1] += word.length;
    else ranges.push([at, at + word.length]);
    at += word.length;
  });
  return kept;
}

/** Positions of a longest common subsequence in both lists; none if they are long. */
function commonWords(left, right) {
  const found = [new Set(), new Set()];
  if (left.length > MOST_WORDS || right.length > MOST_WORDS) return found;
  const width = right.length + 1;
  const table = new Uint16Array((left.length + 1) * width);
  for (let a = left.length - 1; a >= 0; a--) {
    for (let b = right.length - 1; b >= 0; b--) {
      table[a * width + b] =
        left[a] === right[b]
          ? table[(a + 1) * width + b + 1] + 1
          : Math.max(table[(a + 1) * width + b], table[a * width + b + 1]);
    }
  }
  for (let a = 0, b = 0; a < left.length && b < right.length; ) {
    if (left[a] === right[b]) {
      found[0].add(a++);
      found[1].add(b++);
    } else if (table[(a + 1) * width + b] >= table[a * width + b + 1]) a++;
    else b++;
  }
  return found;
}

/** Gives rows of a diff their `marks`: each removed row with the next added one that is like it. */
export function markRows(rows) {
  let at = 0;
  while (at < rows.length) {
    const removed = takeWhile(rows, at, "removed");
    const added = takeWhile(rows, at + removed.length, "added");
    markBlock(removed, added);
    at += Math.max(1, removed.length + added.length);
  }
}

function takeWhile(rows, start, kind) {
  let end = start;
  while (end < rows.length && rows[end].kind === kind) end++;
  return rows.slice(start, end);
}

function markBlock(removed, added) {
  let next = 0;
  for (const row of removed) {
    let best = null;
    for (let at = next; at < Math.min(added.length, next + WINDOW); at++) {
      const marks = compareLines(row.text, added[at].text);
      if (marks.alike >= LEAST_ALIKE && marks.alike > (best?.marks.alike ?? 0)) best = { at, marks };
      if (marks.alike > 0.9) break;
    }
    if (!best) continue;
    row.marks = best.marks.before;
    added[best.at].marks = best.marks.after;
    next = best.at + 1;
  }
}
