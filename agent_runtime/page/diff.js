// Shows a diff, unified or side by side, hunk by hunk; signs and line numbers tell what colours tell.

import { addInSlices, el, forReaders, scrolling } from "./dom.js";
import { markRows } from "./marks.js";
import { coloursOf } from "./syntax.js";
import { many } from "./words.js";
import { pairsOf, rowsOf } from "./unified.js";

const SIGNS = { added: "+", removed: "−", same: " ", note: "\\" };
const CHOICE = "hunk-diff";
/** A longer diff has no colours and no marks: they would take longer to draw than it takes to read a few lines. */
const MOST_COLOURED = 4000;

/**
 * A panel with the diff of each file of an answer. `texts` are the whole file before and after, if they are known: they
 * are needed to colour. With `hunks` each can be accepted or rejected, and `onChoice` hears of it.
 */
export function differencePanel(files, { texts = null, hunks = null, onChoice = null } = {}) {
  const changed = files.filter((file) => file.diff).map((file) => readDiff(file, texts));
  if (!changed.length) return null;
  const body = el("div");
  const panel = el("section", { class: "panel", "aria-labelledby": "diff-title" });
  let drawing = 0;
  const draw = (layout) => {
    drawing += 1;
    const mine = drawing;
    sessionStorage.setItem(CHOICE, layout);
    const choose = hunks && ((at) => hunkChoice(hunks, at, body, onChoice));
    const isRejected = (row) => hunks !== null && !hunks.isAccepted(row.hunk);
    body.replaceChildren(
      ...changed.map((file) => fileDiff(file, new RowMaker(file, choose, isRejected), layout, () => drawing === mine)),
    );
  };
  const layout = sessionStorage.getItem(CHOICE) ?? "unified";
  panel.append(el("div", { class: "head" }, el("h3", { id: "diff-title" }, "Difference"), layouts(layout, draw)), body);
  draw(layout);
  return panel;
}

function layouts(chosen, draw) {
  const choose = (value, text) => {
    const input = el("input", { type: "radio", name: "layout", value, checked: value === chosen });
    input.addEventListener("change", () => draw(value));
    return el("label", {}, input, ` ${text}`);
  };
  return el(
    "div",
    { class: "choice", role: "radiogroup", "aria-label": "Layout of the diff" },
    choose("unified", "unified"),
    choose("split", "side by side"),
  );
}

function readDiff(file, texts) {
  const rows = rowsOf(file.diff);
  let hunk = -1;
  for (const row of rows) row.hunk = row.kind === "hunk" ? ++hunk : hunk;
  const isColoured = rows.length <= MOST_COLOURED;
  if (isColoured) markRows(rows);
  const colours = (text) => (isColoured && text !== undefined ? coloursOf(text, file.path) : null);
  return { path: file.path, rows, before: colours(texts?.before), after: colours(texts?.after) };
}

/** The choice whether a hunk is accepted, as a labelled box. */
function hunkChoice(hunks, at, body, onChoice) {
  const name = `hunk ${at + 1} of ${hunks.count}`;
  const box = el("input", { type: "checkbox", checked: hunks.isAccepted(at), "aria-label": `Accept ${name}`, "data-choice": at });
  const state = el("span", {});
  const tell = () => {
    state.textContent = box.checked ? "Accepted" : "Rejected: the file keeps its lines";
  };
  tell();
  box.addEventListener("change", () => {
    hunks.set(at, box.checked);
    for (const row of body.querySelectorAll(`[data-hunk="${at}"]`)) row.classList.toggle("rejected", !box.checked);
    tell();
    onChoice();
  });
  return el("label", { class: "choose" }, box, state);
}

function fileDiff(file, maker, layout, isWanted) {
  const { rows } = file;
  const added = rows.filter((row) => row.kind === "added").length;
  const removed = rows.filter((row) => row.kind === "removed").length;
  const label = `${file.path || "the file"}: ${many(added, "line")} added, ${many(removed, "line")} removed`;
  const box = scrolling(`Diff of ${label}`, { class: "code whole" });
  const shown = rows.filter((row) => row.kind !== "head");
  const [items, make] =
    layout === "split" ? [pairsOf(shown), (pair) => maker.split(pair)] : [shown, (row) => maker.unified(row)];
  // A table a slice: what is not in sight is not laid out, and one more does not move the others.
  const tableOf = (slice) =>
    el("div", { class: "slice" }, el("table", { class: `diff ${layout}` }, columns(layout), slice.map(make)));
  addInSlices(box, items, tableOf, isWanted);
  return el("div", {}, el("p", { class: "path" }, label), box);
}

/** The widths: side by side they are the same in every slice, whatever its first row is. */
function columns(layout) {
  const classes = layout === "split" ? ["numbers", "signs", "lines", "numbers", "signs", "lines"] : [];
  return classes.map((name) => el("col", { class: name }));
}

/** Makes the rows of a table. */
class RowMaker {
  #file;
  #choose;
  #isRejected;

  /** `choose(at)` gives the choice of a hunk; null where there is none. */
  constructor(file, choose, isRejected) {
    this.#file = file;
    this.#choose = choose;
    this.#isRejected = isRejected;
  }

  unified(row) {
    if (row.kind === "hunk") return this.#head(row, 4);
    return this.#row(row, row.kind, number(row.before), number(row.after), sign(row), this.#line(row));
  }

  split([left, right]) {
    if (left?.kind === "hunk") return this.#head(left, 6);
    return this.#row(left ?? right, "", ...this.#side(left, left?.before), ...this.#side(right, right?.after));
  }

  #row(row, name, ...cells) {
    const classes = `${name}${this.#isRejected(row) ? " rejected" : ""}`;
    return el("tr", { class: classes, "data-hunk": row.hunk }, cells);
  }

  #head(row, colspan) {
    const head = el("div", {}, this.#choose?.(row.hunk), el("span", {}, row.text));
    return el("tr", { class: "hunk" }, el("td", { colspan }, head));
  }

  #side(row, at) {
    if (!row) return [el("td", { class: "nothing", colspan: 3 })];
    const cells = [number(at ?? null), sign(row), this.#line(row)];
    for (const cell of cells) cell.classList.add(row.kind);
    return cells;
  }

  #line(row) {
    const tag = { added: "ins", removed: "del" }[row.kind] ?? "span";
    return el("td", { class: "line" }, row.kind === "note" ? forReaders("note: ") : null, el(tag, {}, this.#pieces(row)));
  }

  /** The text in colours, with the words that differ marked. */
  #pieces(row) {
    const [lines, at] = row.after === null ? [this.#file.before, row.before] : [this.#file.after, row.after];
    const coloured = lines?.[at - 1] ?? null;
    const isSame = coloured?.map(([, text]) => text).join("").replace(/\r$/, "") === row.text.replace(/\r$/, "");
    return cut(isSame ? coloured : [["", row.text]], row.marks ?? []).map(({ kind, text, isMarked }) => {
      const piece = kind ? el("span", { class: `syntax ${kind}` }, text) : text;
      return isMarked ? el("mark", {}, piece) : piece;
    });
  }
}

/** Cuts coloured pieces where marks begin and end. */
function cut(pieces, marks) {
  const found = [];
  let at = 0;
  for (const [kind, text] of pieces) {
    const edges = marks.flat().map((edge) => edge - at).filter((edge) => edge > 0 && edge < text.length);
    const ends = [...edges, text.length];
    let start = 0;
    for (const end of ends) {
      const isMarked = marks.some(([from, to]) => at + start >= from && at + end <= to);
      found.push({ kind, text: text.slice(start, end), isMarked });
      start = end;
    }
    at += text.length;
  }
  return found;
}

function number(value) {
  return el("td", { class: "number" }, value === null ? "" : String(value));
}

function sign(row) {
  return el("td", { class: "sign" }, SIGNS[row.kind]);
}
