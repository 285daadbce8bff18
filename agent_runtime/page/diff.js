// Shows a diff, unified or side by side; signs and line numbers tell what colours tell.

import { addInSlices, el, forReaders, scrolling } from "./dom.js";
import { many } from "./words.js";
import { pairsOf, rowsOf } from "./unified.js";

const SIGNS = { added: "+", removed: "−", same: " ", note: "\\" };
const CHOICE = "hunk-diff";

/** A panel with the diff of each file of an answer. */
export function differencePanel(files) {
  const changed = files.filter((file) => file.diff);
  if (!changed.length) return null;
  const body = el("div");
  const panel = el("section", { class: "panel", "aria-labelledby": "diff-title" });
  let drawing = 0;
  const draw = (layout) => {
    drawing += 1;
    const mine = drawing;
    sessionStorage.setItem(CHOICE, layout);
    body.replaceChildren(...changed.map((file) => fileDiff(file, layout, () => drawing === mine)));
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

function fileDiff(file, layout, isWanted) {
  const rows = rowsOf(file.diff);
  const added = rows.filter((row) => row.kind === "added").length;
  const removed = rows.filter((row) => row.kind === "removed").length;
  const label = `${file.path || "the file"}: ${many(added, "line")} added, ${many(removed, "line")} removed`;
  const box = scrolling(`Diff of ${label}`, { class: "code" });
  const shown = rows.filter((row) => row.kind !== "head");
  const [items, make] = layout === "split" ? [pairsOf(shown), splitRow] : [shown, unifiedRow];
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

function unifiedRow(row) {
  if (row.kind === "hunk") return el("tr", { class: "hunk" }, el("td", { colspan: 4 }, row.text));
  return el("tr", { class: row.kind }, number(row.before), number(row.after), sign(row), line(row));
}

function splitRow([left, right]) {
  if (left?.kind === "hunk") return el("tr", { class: "hunk" }, el("td", { colspan: 6 }, left.text));
  return el("tr", {}, ...side(left, left?.before), ...side(right, right?.after));
}

function side(row, at) {
  if (!row) return [el("td", { class: "nothing", colspan: 3 })];
  const cells = [number(at ?? null), sign(row), line(row)];
  for (const cell of cells) cell.classList.add(row.kind);
  return cells;
}

function number(value) {
  return el("td", { class: "number" }, value === null ? "" : String(value));
}

function sign(row) {
  return el("td", { class: "sign" }, SIGNS[row.kind]);
}

function line(row) {
  const tag = { added: "ins", removed: "del" }[row.kind] ?? "span";
  return el("td", { class: "line" }, row.kind === "note" ? forReaders("note: ") : null, el(tag, {}, row.text));
}
