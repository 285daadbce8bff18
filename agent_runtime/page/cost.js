// Shows what an edit cost: tokens by reason, forwards, milliseconds by phase.

import { el } from "./dom.js";
import { KINDS, count, many, milliseconds, percent } from "./words.js";

/** The panel; `recent` is the service's rolling window, for comparison, or null. */
export function costPanel(answer, recent) {
  const usage = answer.usage;
  return el(
    "details",
    { class: "panel" },
    el("summary", {}, el("b", {}, "What it cost"), `: ${costText(answer)}`),
    usage.prompt ? tokenCost(usage, weighedIn(answer.trace), recent) : el("p", { class: "note" }, "No forward pass: a rule decided."),
    timings(answer.timings),
  );
}

function costText({ usage, timings: { total_ms } }) {
  const forwards = usage.prompt ? `${many(usage.prompt, "token")} read, ${count(usage.completion)} written` : "no forward pass";
  return `${milliseconds(total_ms)}, ${forwards}`;
}

/** Tokens of readings that the model was asked to weigh: it wrote none of them. */
function weighedIn(trace) {
  const runs = (trace ?? []).flatMap((answer) => answer.completion);
  return runs.reduce((sum, run) => sum + (run.origin === "scored" ? run.tokens : 0), 0);
}

function tokenCost(usage, weighed, recent) {
  const copied = usage.accepted - (usage.by_source.draft_model?.accepted ?? 0);
  return el(
    "div",
    { class: "two" },
    el(
      "div",
      {},
      stack(`Prompt: ${many(usage.prompt, "token")}`, [
        ["cached", usage.cached],
        ["reused", usage.reused_approximate],
        ["recomputed", usage.recomputed],
      ]),
      el("p", { class: "note" }, reasons(usage.recomputed_by)),
      stack(`Answer: ${many(usage.completion, "token")}`, [
        ["copied", copied],
        ["generated", usage.completion - copied - weighed],
        ...(weighed ? [["scored", weighed]] : []),
      ]),
      el("p", { class: "note" }, `${many(usage.forwards, "forward")}, ${perForward(usage)} tokens each.${drafts(usage)}`),
    ),
    rates(usage, recent),
  );
}

/** What was drafted, and how much of each source was right. */
function drafts(usage) {
  if (!usage.drafted) return "";
  const parts = Object.entries(usage.by_source).map(
    ([source, by]) => `${count(by.accepted)} of ${count(by.drafted)} from ${source.replace("_", " ")}`,
  );
  return ` Drafted ${count(usage.drafted)}, rejected ${count(usage.rejected)}: right were ${parts.join(", ")}.`;
}

function perForward(usage) {
  return usage.forwards ? (usage.completion / usage.forwards).toFixed(1) : "0";
}

function reasons(by) {
  const parts = Object.entries(by ?? {}).map(([reason, number]) => `${reason} ${count(number)}`);
  return parts.length ? `Run because: ${parts.join(", ")}.` : "";
}

/** A bar that shows the shares of a whole; the numbers stand below it. */
function stack(title, parts) {
  const whole = parts.reduce((sum, [, number]) => sum + number, 0) || 1;
  const shown = parts.filter(([, number]) => number > 0);
  const bar = el("div", { class: "stack", "aria-hidden": "true" });
  for (const [kind, number] of shown) {
    const part = el("span", { class: `part ${kind}` });
    part.style.width = `${(number / whole) * 100}%`;
    bar.append(part);
  }
  const names = parts.map(([kind, number]) =>
    el(
      "li",
      {},
      el("span", { class: `swatch part ${kind}`, "aria-hidden": "true" }),
      `${KINDS[kind].name} ${count(number)} (${percent(number / whole)})`,
    ),
  );
  return el("div", {}, el("p", { class: "path" }, title), bar, el("ul", { class: "shares" }, names));
}

function rates(usage, recent) {
  const rows = [
    ["Prefix hit rate", usage.prefix_hit_rate, recent?.prefix_hit_rate],
    ["Approximate reuse", usage.reused_approximate / usage.prompt, recent?.approximate_share],
  ];
  const minutes = recent ? `last ${Math.round(recent.seconds / 60)} min` : "lately";
  const head = ["", "this edit", minutes].map((name) => (name ? el("th", { scope: "col" }, name) : el("td")));
  return el(
    "table",
    { class: "list rates" },
    el("caption", { class: "sr" }, "Rates of this edit and of the service"),
    el("thead", {}, el("tr", {}, head)),
    el(
      "tbody",
      {},
      rows.map(([name, here, lately]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, name),
          el("td", { class: "number" }, percent(here)),
          el("td", { class: "number" }, percent(lately)),
        ),
      ),
    ),
  );
}

function timings(found) {
  const total = found.total_ms ?? 0;
  const phases = Object.entries(found).filter(([name]) => name !== "total_ms");
  const row = ([name, value]) => {
    const bar = el("span", { class: "time" });
    bar.style.width = `${total ? Math.min(100, (value / total) * 100) : 0}%`;
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, name.replace(/_ms$/, "")),
      el("td", { class: "number" }, milliseconds(value)),
      el("td", { class: "times", "aria-hidden": "true" }, bar),
    );
  };
  return el(
    "table",
    { class: "list timings" },
    el("caption", {}, "Milliseconds by phase"),
    el("tbody", {}, phases.map(row), row(["total", total])),
  );
}
