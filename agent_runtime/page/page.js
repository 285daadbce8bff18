// The page: what is asked for, what happens meanwhile, what came of it.

import { Problem, applyWatched, post, token } from "./api.js";
import { costPanel } from "./cost.js";
import { curlCommand } from "./curl.js";
import { differencePanel } from "./diff.js";
import { el } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { showProblem } from "./fault.js";
import { Hunks } from "./hunks.js";
import { ServiceNow } from "./service.js";
import { Source } from "./source.js";
import { LiveTokens, tokensPanel } from "./tokens.js";
import { statusText, verdictPanel } from "./verdict.js";
import { many, milliseconds } from "./words.js";

const byId = (id) => document.getElementById(id);
/** Reasons of a refusal that a model may decide about, if it is asked to. */
const MENDABLE = new Set(["not_found", "ambiguous", "open_intent", "stale"]);
const MARK = "\ufeff";
const OPTIONS = ["mode", "format", "scope", "decide", "draft", "policy", "min_certainty"];

const service = new ServiceNow(byId("service"), byId("model"), byId("load"));
const source = new Source(complain);
const live = new LiveTokens(byId("tokens"));

/** What is being applied, or null. */
let running = null;
/** What is shown, if it is a merge: the request, its answer, the text before, and the hunks, null if they are one whole. */
let shown = null;
/** The last write of this page, or its undo: what `POST /undo` takes back. */
let undoable = null;

function say(text) {
  byId("status").textContent = text;
}

function complain(problem, ...actions) {
  if (!(problem instanceof Problem)) problem = new Problem({ title: "It did not work", detail: problem.message });
  if (problem.kind === "stale") actions.push(reloadButton());
  if (problem.kind === "edit-refused" && problem.problem.reasons?.every(({ code }) => MENDABLE.has(code))) {
    actions.push(modelButton());
  }
  if (problem.problem.reasons?.length && navigator.clipboard) actions.push(copyButton(problem.problem.reasons));
  showProblem(byId("problem"), problem, ...actions);
}

function reloadButton() {
  const button = el("button", { type: "button" }, "Load the file again");
  button.addEventListener("click", async () => {
    await source.load();
    byId("problem").hidden = true;
    say("The file is loaded again. Look at it, and apply once more.");
    byId("apply").focus();
  });
  return button;
}

/** The model is asked about this edit only: the mode of the next one stays what it is. */
function modelButton() {
  const button = el("button", { type: "button", id: "ask-model" }, "Ask the model, which may be wrong");
  button.addEventListener("click", () => apply({ mode: "model", min_certainty: "model" }));
  return button;
}

function copyButton(reasons) {
  const button = el("button", { type: "button" }, "Copy the reasons for the model that wrote the edit");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(JSON.stringify(reasons, null, 2));
    say("The reasons are copied.");
  });
  return button;
}

/** The request that the form makes. */
function requestBody() {
  if (!byId("edit").value.trim()) throw new Error("Paste an edit first.");
  const body = { ...source.fields, edit: byId("edit").value };
  for (const name of OPTIONS) body[name] = byId(name).value;
  if (byId("reuse").value) body.reuse = byId("reuse").value;
  if (byId("instruction").value.trim()) body.instruction = byId("instruction").value.trim();
  return body;
}

function clear() {
  shown = null;
  byId("problem").hidden = true;
  byId("take").hidden = true;
  byId("show-examples").hidden = false;
  live.clear();
  for (const id of ["examples", "phases", "verdict", "difference", "cost"]) byId(id).replaceChildren();
}

/** Applies what is in the form; `instead` are fields of the request that take the place of the form's. */
async function apply(instead = {}) {
  if (running) return;
  let body;
  try {
    body = { ...requestBody(), trace: true, ...instead };
  } catch (error) {
    complain(error);
    say("Nothing was sent.");
    return;
  }
  const before = source.text;
  clear();
  bringResult();
  await watched("Applying …", async (signal) => {
    const phases = new Phases(byId("phases"));
    const answer = await applyWatched(
      body,
      (name, data) => {
        if (name === "phase") phases.enter(data.phase);
        if (name === "phase" && data.phase === "prompt") live.clear();
        if (name === "tokens") live.take(data.region, data.pieces);
      },
      signal,
    );
    phases.finish();
    await show(body, answer, before);
  }, { canBeStopped: true });
}

/** Brings the result's beginning into sight: beside the form it is there already, below it (on a phone) it is not. */
function bringResult() {
  byId("result").scrollTop = 0;
  if (matchMedia("(max-width: 900px)").matches) byId("result").scrollIntoView();
}

/** Does the work, which nothing else is begun beside, and tells what became of it. */
async function watched(text, work, { canBeStopped }) {
  running = new AbortController();
  for (const id of ["apply", "write", "undo"]) byId(id).disabled = true;
  byId("cancel").disabled = !canBeStopped;
  byId("result").setAttribute("aria-busy", "true");
  say(text);
  try {
    await work(running.signal);
  } catch (error) {
    if (error.name === "AbortError") {
      say("Stopped. Nothing was written.");
    } else {
      complain(error);
      say(`Not done: ${error.message}`);
    }
  } finally {
    running = null;
    for (const id of ["apply", "write", "undo"]) byId(id).disabled = false;
    tellChoice();
    byId("cancel").disabled = true;
    byId("result").removeAttribute("aria-busy");
    bringResult(); // on a phone there may have been too little below it before
  }
}

async function show(body, answer, before) {
  say(`${statusText(answer)} in ${milliseconds(answer.timings.total_ms)}.`);
  live.clear(); // what is not drawn yet is in the answer
  const mark = answer.merged?.startsWith(MARK) ? MARK : "";
  const hunks = Hunks.of(answer, mark + withoutMark(before));
  const texts = { before: withoutMark(before), after: withoutMark(answer.merged ?? "") };
  put("verdict", verdictPanel(answer));
  const onChoice = () => {
    shown.isWarned = false;
    tellChoice();
  };
  put("difference", differencePanel(answer.files, { texts, hunks, onChoice }));
  put("tokens", tokensPanel(answer.trace, answer.scope));
  if (answer.status === "merged" && typeof answer.merged === "string") {
    shown = { body, answer, before, hunks };
    byId("write").hidden = !body.workspace;
    byId("write").textContent = `Write to ${body.path}`;
    byId("copy-text").hidden = !navigator.clipboard;
    byId("take").hidden = false;
  }
  await service.look();
  put("cost", costPanel(answer, service.window));
}

/** The text that is copied, downloaded or written: that of the accepted hunks. */
function acceptedText() {
  return shown.hunks?.text ?? shown.answer.merged;
}

/** Says what the buttons take, and lets nobody write what changes nothing. */
function tellChoice() {
  if (!shown) return;
  const { hunks } = shown;
  const isNothing = hunks !== null && hunks.numAccepted === 0;
  byId("write").disabled = running !== null || isNothing;
  byId("take-note").textContent =
    hunks === null || hunks.areAllAccepted
      ? "exactly what is shown"
      : isNothing
        ? "no hunk is accepted: the text is that of the file"
        : `${hunks.numAccepted} of ${many(hunks.count, "hunk")} accepted`;
}

function put(id, panel) {
  byId(id).replaceChildren(...(panel ? [panel] : []));
}

/**
 * Has what is accepted written. A model might answer otherwise if it was asked again, and no edit says which hunks are
 * accepted: the request is then a replacement of the whole text, which a rule decides. It is tried before it is written.
 */
async function write() {
  if (!shown?.body.workspace || running) return;
  const { body, answer, hunks } = shown;
  const text = acceptedText();
  byId("problem").hidden = true;
  await watched(`Writing ${body.path} …`, async () => {
    const isWhole = hunks === null || hunks.areAllAccepted;
    const request = answer.method === "model" || !isWhole ? asReplacement(text) : { ...body, trace: false };
    const tried = await post("apply", { ...request, write: false });
    const isSame = isWhole ? tried.sha256 === answer.sha256 : withoutMark(tried.merged ?? "") === withoutMark(text);
    if (tried.status !== "merged" || !isSame) {
      throw new Error("Nothing was written: the service would write something else now. Apply the edit again.");
    }
    const errors = isWhole ? null : newErrors(tried);
    if (errors && !shown.isWarned) {
      shown.isWarned = true;
      throw new Error(`Nothing was written: with these hunks alone the file has ${errors}. Write once more if you mean it.`);
    }
    const done = await post("apply", { ...request, write: true });
    byId("take").hidden = true;
    offerUndo(done.write_id, body, `Undo the write to ${body.path}`);
    shown = null;
    for (const box of document.querySelectorAll("[data-choice]")) box.disabled = true;
    say(`Written: ${body.path}, sha256 ${done.sha256.slice(0, 12)}….`);
    await source.load();
  }, { canBeStopped: false });
}

/** What the check of the syntax says if there are more errors than before, else null. Merges to the letter pass it. */
function newErrors({ files: [{ checks }] }) {
  const { detail } = checks.find(({ name }) => name === "parse_errors") ?? {};
  const numbers = /^(\d+) syntax errors, (\d+) before/.exec(detail);
  return numbers && Number(numbers[1]) > Number(numbers[2]) ? numbers[0] : null;
}

function asReplacement(text) {
  const edit = JSON.stringify({ old_string: withoutMark(shown.before), new_string: withoutMark(text) });
  const { workspace, path, expected_sha256 } = shown.body;
  return { workspace, path, expected_sha256, edit, format: "replace", mode: "deterministic", policy: "lenient" };
}

function withoutMark(text) {
  return text.startsWith(MARK) ? text.slice(1) : text;
}

/** Offers to take a write back; a service that keeps no old bytes gives no ID. */
function offerUndo(id, { workspace, path }, label) {
  undoable = id ? { id, workspace, path } : null;
  byId("undo").hidden = !undoable;
  byId("undo").textContent = label;
}

/** Takes the last write back. That is a write too, which the same button takes back. */
async function undo() {
  if (!undoable || running) return;
  const { id, workspace, path } = undoable;
  byId("problem").hidden = true;
  await watched(`Undoing the write to ${path} …`, async () => {
    let done;
    try {
      done = await post("undo", { id, workspace });
    } catch (problem) {
      if (![400, 404, 409].includes(problem.status)) throw problem;
      throw new Problem({ ...problem.problem, type: "undo-refused", title: "Not undone" });
    }
    const isRedone = byId("undo").textContent.startsWith("Redo");
    offerUndo(done.id, { workspace, path }, `${isRedone ? "Undo" : "Redo"} the write to ${path}`);
    say(isRedone ? `Written again: ${path}.` : `Undone: ${path} is what it was before the write.`);
    await source.load();
  }, { canBeStopped: false });
}

async function copyText() {
  await navigator.clipboard.writeText(withoutMark(acceptedText()));
  byId("take-note").textContent = "The text is copied.";
}

function download() {
  const { path } = shown.body;
  const url = URL.createObjectURL(new Blob([acceptedText()], { type: "text/plain" }));
  el("a", { href: url, download: path?.split("/").at(-1) || "merged.txt" }).click();
  setTimeout(() => URL.revokeObjectURL(url));
}

/** Copies the request that the form makes as a command. It names the variable of a token, never a token. */
async function copyCommand() {
  try {
    const url = String(new URL("apply", document.baseURI));
    await navigator.clipboard.writeText(curlCommand(url, requestBody(), Boolean(token.get())));
    say("The command is copied. It answers what Apply would answer.");
  } catch (error) {
    complain(error);
    say("Nothing is copied.");
  }
}

/** The phases as they begin. What each took is part of the cost. */
class Phases {
  #list;
  #last = null;

  constructor(list) {
    this.#list = list;
  }

  enter(phase) {
    this.#last?.classList.remove("now");
    this.#last = el("li", { class: "now", "data-phase": phase }, phase);
    this.#list.append(this.#last);
    say(`Phase: ${phase}`);
  }

  finish() {
    this.#last?.classList.remove("now");
  }
}

/** Shows the examples as cards: each fills the form. */
function showExamples() {
  byId("show-examples").hidden = true;
  const cards = EXAMPLES.map((example) => {
    const card = el(
      "button",
      { type: "button", class: "card" },
      el("b", {}, example.title),
      el("span", {}, example.says),
      el("code", { "aria-hidden": "true" }, beginningOf(example.edit)),
    );
    card.addEventListener("click", () => tryExample(example));
    return card;
  });
  byId("examples").replaceChildren(el("p", {}, "Choose a file, paste an edit, apply it. Or try an example:"), ...cards);
}

/** The first lines of an edit, without the indentation of its first. */
function beginningOf(edit) {
  const [indentation] = edit.match(/^ */);
  return edit.split("\n").slice(0, 5).map((line) => line.replace(indentation, "")).join("\n");
}

function tryExample(example) {
  source.paste(example.name, example.text);
  byId("edit").value = example.edit;
  byId("mode").value = example.mode;
  say(`${example.title}: apply it.`);
  byId("apply").focus();
}

async function begin() {
  byId("forget-token").hidden = !token.get();
  await service.begin();
  if (!byId("access").hidden) return;
  try {
    await source.begin();
  } catch (problem) {
    if (problem.status !== 401) complain(problem);
  }
}

window.addEventListener("hunk-needs-token", () => {
  if (!byId("access").hidden) return;
  byId("access").hidden = false;
  say(token.get() ? "The service does not know this token." : "The service asks for a token.");
  byId("token").focus();
});

byId("access-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  byId("token").value = "";
  byId("access").hidden = true;
  begin();
});

byId("forget-token").addEventListener("click", () => {
  token.set("");
  location.reload();
});

byId("edit-form").addEventListener("submit", (event) => {
  event.preventDefault();
  apply();
});
byId("cancel").addEventListener("click", () => running?.abort());
byId("write").addEventListener("click", write);
byId("undo").addEventListener("click", undo);
byId("copy-text").addEventListener("click", copyText);
byId("download").addEventListener("click", download);
byId("copy-curl").addEventListener("click", copyCommand);
byId("copy-curl").hidden = !navigator.clipboard; // a page that did not come over HTTPS or from this machine has none
byId("show-examples").addEventListener("click", () => {
  showExamples();
  byId("examples").scrollIntoView();
  byId("examples").querySelector("button").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    apply();
  }
  if (event.key === "Escape") running?.abort();
});

showExamples();
begin();
