// Shows why an edit was not applied, and what to do about it.

import { el, scrolling } from "./dom.js";
import { percent } from "./words.js";

const ADVICE = {
  stale: "The file is not what was loaded here; nothing was written. Load it again, look at it, and apply once more.",
  unauthorized: "Give a token above, then try again.",
  forbidden: "The token may not do this; ask for one with the scope that is named.",
  "undo-refused": "A write can be undone while its files are as it left them. `hunk log` lists the writes.",
  busy: "Try again in a moment.",
  "model-unavailable": "Edits that a rule decides work meanwhile.",
  "outside-root": "Paste the file's text instead, or start the service with --root.",
};

/** Fills the box with a problem; `actions` are buttons for it. */
export function showProblem(box, problem, ...actions) {
  const details = problem.problem ?? {};
  const wait = Math.ceil(Number(details.retry_after_s ?? details.retry_after ?? 0));
  box.replaceChildren(
    ...[
      el("h3", {}, details.title || "It did not work"),
      el("p", {}, problem.message),
      ADVICE[problem.kind] ? el("p", { class: "advice" }, ADVICE[problem.kind]) : null,
      wait > 0 ? el("p", { class: "note" }, `The service asks to wait ${wait} s.`) : null,
      ...(details.reasons ?? []).map(reasonView),
      actions.length ? el("p", { class: "actions" }, actions) : null,
    ].filter(Boolean),
  );
  box.hidden = false;
}

function reasonView(reason) {
  return el(
    "article",
    { class: "reason" },
    el("p", {}, el("code", {}, reason.code), reason.path ? ` ${reason.path}: ` : " ", reason.reason),
    reason.suggestion ? el("p", { class: "advice" }, el("b", {}, "Send instead: "), reason.suggestion) : null,
    reason.nearest ? snippet("The nearest place", reason.nearest) : null,
    (reason.candidates ?? []).map((one, at) =>
      snippet(`Reading ${at + 1}, ${percent(one.score)}: ${one.why}`, one.diff),
    ),
  );
}

function snippet(title, text) {
  return el("div", {}, el("p", { class: "path" }, title), scrolling(title, { class: "code" }, el("pre", {}, text)));
}
