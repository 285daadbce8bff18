// Reads a unified diff, as the service writes it, into rows.

const RANGE = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

/**
 * Rows of `{ kind, text, before, after }`: kind is "head", "hunk", "same", "added", "removed" or "note"; `before` and
 * `after` are line numbers, null where the row is not in that file.
 */
export function rowsOf(diff) {
  const rows = [];
  let before = 0;
  let after = 0;
  let isInHunk = false;
  const lines = diff.split("\n");
  if (lines.at(-1) === "") lines.pop();
  for (const line of lines) {
    const range = RANGE.exec(line);
    if (range) {
      [before, after] = [Number(range[1]), Number(range[2])];
      isInHunk = true;
      rows.push({ kind: "hunk", text: line, before: null, after: null });
    } else if (!isInHunk || line.startsWith("diff --git ")) {
      isInHunk = false;
      rows.push({ kind: "head", text: line, before: null, after: null });
    } else if (line.startsWith("+")) {
      rows.push({ kind: "added", text: line.slice(1), before: null, after: after++ });
    } else if (line.startsWith("-")) {
      rows.push({ kind: "removed", text: line.slice(1), before: before++, after: null });
    } else if (line.startsWith("\\")) {
      rows.push({ kind: "note", text: line.slice(2), before: null, after: null });
    } else {
      rows.push({ kind: "same", text: line.slice(1), before: before++, after: after++ });
    }
  }
  return rows;
}

/** The rows in pairs, what was removed beside what came for it: `[left, right]`, null where there is nothing. */
export function pairsOf(rows) {
  const pairs = [];
  let removed = [];
  let added = [];
  const settle = () => {
    for (let at = 0; at < Math.max(removed.length, added.length); at++) {
      pairs.push([removed[at] ?? null, added[at] ?? null]);
    }
    removed = [];
    added = [];
  };
  for (const row of rows) {
    if (row.kind === "removed" && added.length) settle();
    if (row.kind === "removed") removed.push(row);
    else if (row.kind === "added") added.push(row);
    else if (row.kind === "note") (added.length ? added : removed).push(row);
    else {
      settle();
      pairs.push([row, row]);
    }
  }
  settle();
  return pairs;
}
