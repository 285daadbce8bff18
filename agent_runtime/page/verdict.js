// Says what became of an edit: how it was merged, how sure that is, what the checks found.

import { el } from "./dom.js";
import { count, many, percent } from "./words.js";

const STATUSES = {
  merged: ["good", "Merged"],
  rejected: ["bad", "Rejected, a check failed: nothing can be written of what is shown. Done"],
  noop: ["idle", "Nothing to do, the edit is in the file already. Done"],
};

const CERTAINTIES = {
  certain: "certain: a rule, and one place only",
  likely: "likely: no rule proves it, but the reading is very probably right",
  scored: "scored: the model chose one of the readings",
  model: "model: the model wrote it",
};

const METHODS = {
  certain: "a rule, without the model",
  likely: "the likeliest reading, without the model",
};

export function statusText(answer) {
  return STATUSES[answer.status]?.[1] ?? answer.status;
}

export function verdictPanel(answer) {
  return el(
    "section",
    { class: "panel", "aria-labelledby": "verdict-title" },
    el("h3", { id: "verdict-title", class: "sr" }, "Verdict"),
    answer.files.map(fileVerdict),
  );
}

function fileVerdict(file) {
  const [mood] = STATUSES[file.status] ?? ["idle"];
  const facts = [
    ["Method", METHODS[file.certainty] ?? "the model"],
    ["Rung", file.rung],
    ["Candidates", count(file.candidates)],
  ];
  if (typeof file.confidence === "number") facts.push(["Confidence", wholePercent(file.confidence)]);
  if (file.scope) facts.push(["The model read", scopeText(file.scope)]);
  return el(
    "div",
    { class: "verdict" },
    el(
      "p",
      {},
      el("span", { class: `badge ${mood}` }, file.status),
      file.path ? el("code", {}, file.move_to ? `${file.path} → ${file.move_to}` : file.path) : null,
      el("span", {}, CERTAINTIES[file.certainty] ?? file.certainty),
    ),
    failedChecks(file.checks ?? []),
    readings(file.readings ?? []),
    el(
      "details",
      { class: "passed" },
      el("summary", {}, "How it was made", passedChecks(file.checks ?? [])),
      el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      el("ul", { class: "checks" }, (file.checks ?? []).filter((check) => check.ok).map(checkItem)),
    ),
  );
}

/** Cut, never rounded up: nothing short of 1 is 100 %. */
function wholePercent(share) {
  return `${Math.floor(share * 100)} %`;
}

function scopeText(scope) {
  if (scope.kind === "file") return `the whole file, ${many(scope.of_lines, "line")}`;
  return `${count(scope.lines)} of ${many(scope.of_lines, "line")}, in ${many(scope.regions.length, "region")}`;
}

function readings(found) {
  if (!found.length) return null;
  return el(
    "table",
    { class: "list" },
    el("caption", {}, "Readings that the model weighed"),
    el("thead", {}, el("tr", {}, ["share", "assumed"].map((name) => el("th", { scope: "col" }, name)))),
    el(
      "tbody",
      {},
      found.map((one) => el("tr", {}, el("td", { class: "number" }, percent(one.score)), el("td", {}, one.why))),
    ),
  );
}

function failedChecks(found) {
  const failed = found.filter((check) => !check.ok);
  return failed.length ? el("ul", { class: "checks", "aria-label": "Failed checks" }, failed.map(checkItem)) : null;
}

function passedChecks(found) {
  const passed = found.filter((check) => check.ok).length;
  return passed ? ["; ", el("span", { class: "mark" }, "✓"), many(passed, "check"), " passed"] : null;
}

function checkItem(check) {
  return el(
    "li",
    { class: check.ok ? "ok" : "failed" },
    el("span", { class: "mark" }, check.ok ? "✓" : "✗ failed"),
    el("code", {}, check.name),
    check.detail ? el("span", { class: "detail" }, check.detail) : null,
  );
}
