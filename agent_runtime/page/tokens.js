// Shows tokens by how they came about: while the model writes them, and all of them when it is done.

import { el, forReaders, oncePerFrame, scrolling } from "./dom.js";
import { KINDS, count, many } from "./words.js";

/** What a run of tokens looks like; screen readers hear its kind where it is another one than before. */
function runSpan(kind, text, { isNew = true, title = null, startsPass = false } = {}) {
  const classes = `run ${kind}${startsPass ? " starts-pass" : ""}`;
  return el("span", { class: classes, title }, isNew ? forReaders(` [${kind}:] `) : null, text);
}

/** Names, samples and meanings of kinds, with how many tokens there are of each. */
function legend(counts) {
  const items = Object.entries(KINDS)
    .filter(([kind]) => counts[kind] !== undefined)
    .map(([kind, { name, means }]) =>
      el(
        "li",
        {},
        el("span", { class: `run ${kind}`, "aria-hidden": "true" }, "abc"),
        el("span", {}, el("b", {}, name), counts[kind] === null ? "" : ` ${count(counts[kind])}`, ` – ${means}`),
      ),
    );
  return el("ul", { class: "legend", "aria-label": "What the marks mean" }, items);
}

/** The panel: open while the model writes, folded when it is done. */
function panel(isOpen, summary, ...children) {
  return el("details", { class: "panel", open: isOpen }, el("summary", {}, el("b", {}, "Token by token"), summary), children);
}

/** The answer as it is written: pieces are drawn once a frame, those of one pass and kind as one. */
export class LiveTokens {
  #parent;
  #regions = new Map();
  #waiting = [];
  #draw = oncePerFrame(() => this.#flush());

  constructor(parent) {
    this.#parent = parent;
    this.clear();
  }

  /** An answer begins anew. */
  clear() {
    this.#regions.clear();
    this.#waiting = [];
    this.#parent.replaceChildren();
  }

  /** A pass wrote these pieces of the answer for a region. */
  take(region, pieces) {
    this.#waiting.push({ region, pieces });
    this.#draw();
  }

  #flush() {
    if (this.#waiting.length && !this.#regions.size) {
      this.#parent.replaceChildren(panel(true, "", legend({ copied: null, generated: null })));
    }
    for (const { region, pieces } of this.#waiting) this.#append(this.#box(region), pieces);
    this.#waiting = [];
  }

  #append(box, pieces) {
    const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 20;
    runsOf(pieces).forEach((run, at) => {
      const isNew = !box.lastElementChild?.classList.contains(run.kind);
      box.append(runSpan(run.kind, run.text, { isNew, startsPass: at === 0 }));
    });
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }

  #box(region) {
    if (!this.#regions.has(region)) {
      const box = scrolling(`What the model writes, region ${region + 1}`, { class: "code tokens live" });
      this.#regions.set(region, box);
      this.#parent.lastElementChild.append(el("p", { class: "path" }, `Region ${region + 1}, as it is written`), box);
    }
    return this.#regions.get(region);
  }
}

/** Neighbouring pieces of one kind as one. */
function runsOf(pieces) {
  const runs = [];
  for (const { text, origin } of pieces) {
    const kind = origin in KINDS ? origin : "generated";
    if (runs.at(-1)?.kind === kind) runs.at(-1).text += text;
    else runs.push({ kind, text });
  }
  return runs;
}

/** All that the model read and wrote; null where it was not asked. */
export function tokensPanel(trace, scope) {
  if (!trace?.length) return null;
  const counts = {};
  for (const answer of trace) {
    for (const run of answer.prompt) counts[run.kind] = (counts[run.kind] ?? 0) + run.tokens;
    for (const run of answer.completion) counts[run.origin] = (counts[run.origin] ?? 0) + run.tokens;
  }
  const kinds = Object.keys(KINDS).filter((kind) => counts[kind]);
  const node = panel(
    false,
    `: ${kinds.map((kind) => `${count(counts[kind])} ${KINDS[kind].name}`).join(", ")}`,
    legend(counts),
    trace.map((answer, at) => answerView(answer, at, scope, trace.length)),
  );
  node.addEventListener("toggle", () => showNews(node), { once: true });
  return node;
}

/** Scrolls each prompt to the first token that was not cached: what stands before is the same for all edits. */
function showNews(parent) {
  for (const box of parent.querySelectorAll(".tokens")) {
    const first = box.querySelector(".recomputed, .reused");
    if (first) box.scrollTop = first.offsetTop - box.clientHeight / 3;
  }
}

function answerView(answer, at, scope, numAnswers) {
  const isWritten = answer.purpose === "write";
  const lines = scope?.kind === "regions" ? scope.regions[answer.region] : null;
  const where = lines ? `lines ${lines[0]} to ${lines[1]}` : "the whole file";
  const numRead = total(answer.prompt);
  const numWritten = total(answer.completion);
  const title = isWritten ? `Writing ${where}` : `Weighing a reading of ${where}`;
  const details = el(
    "details",
    { class: "answer", open: isWritten || numAnswers === 1 },
    el(
      "summary",
      {},
      el("b", {}, `${at + 1}. ${title}`),
      `: ${many(numRead, "token")} read, ${count(numWritten)} ${isWritten ? "written" : "weighed"} in `,
      many(answer.forwards.length, "forward"),
    ),
  );
  details.append(
    el("p", { class: "path" }, "What it read"),
    scrolling(`Prompt ${at + 1}`, { class: "code tokens" }, promptSpans(answer.prompt)),
    el("p", { class: "path" }, isWritten ? "What it wrote" : "What was weighed"),
    scrolling(`Answer ${at + 1}`, { class: "code tokens" }, outputSpans(answer.completion)),
    passes(answer),
  );
  return details;
}

function total(runs) {
  return runs.reduce((sum, run) => sum + run.tokens, 0);
}

function promptSpans(runs) {
  return runs.map((run) => runSpan(run.kind, run.text, { title: `${run.kind}: ${many(run.tokens, "token")}` }));
}

function outputSpans(runs) {
  const end = runs.findLastIndex((run) => run.text !== "") + 1; // behind it stands what ends the answer
  return runs.slice(0, end + 1).map((run, at) => {
    const before = runs[at - 1];
    return runSpan(run.origin, at === end ? "⟨end⟩" : run.text, {
      isNew: run.origin !== before?.origin,
      title: `${run.origin} in pass ${run.pass + 1}: ${many(run.tokens, "token")}`,
      startsPass: run.pass !== before?.pass,
    });
  });
}

const MAX_BARS = 400;

/** A bar a pass: how many tokens it confirmed, of how many that were drafted. */
function passes(answer) {
  const most = Math.max(1, ...answer.forwards.map((each) => Math.max(each.tokens, each.drafted)));
  const height = (tokens) => `${Math.max(tokens ? 6 : 2, Math.round((tokens / most) * 100))}%`;
  const bars = answer.forwards.slice(0, MAX_BARS).map((each, at) => {
    const title = `Pass ${at + 1}: ${many(each.tokens, "token")} confirmed, ${count(each.drafted)} drafted`;
    const bar = el("span", { class: "bar", title });
    const drafted = el("span", { class: "drafted" });
    const confirmed = el("span", { class: "confirmed" });
    drafted.style.height = height(each.drafted);
    confirmed.style.height = height(each.tokens);
    bar.append(drafted, confirmed);
    return bar;
  });
  const inWords = answer.forwards
    .slice(0, MAX_BARS)
    .map((each) => `${each.tokens} of ${each.drafted} drafted`)
    .join("; ");
  const cut = answer.forwards.length > MAX_BARS ? `, the first ${MAX_BARS} of ${count(answer.forwards.length)}` : "";
  return el(
    "div",
    { class: "passes" },
    el("p", { class: "path" }, `Tokens that each forward confirmed (outlined: drafted)${cut}`),
    el("div", { class: "bars", "aria-hidden": "true" }, bars),
    forReaders(`Tokens confirmed by each forward, in order: ${inWords}.`),
  );
}
