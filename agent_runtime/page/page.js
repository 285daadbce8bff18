// The page: what is asked for, what happens meanwhile, what came of it.

import { Problem, applyWatched, post, token } from "./api.js";
import { costPanel } from "./cost.js";
import { differencePanel } from "./diff.js";
import { el } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { showProblem } from "./fault.js";
import { ServiceNow } from "./service.js";
import { Source } from "./source.js";
import { LiveTokens, showNews, tokensPanel } from "./tokens.js";
import { statusText, verdictPanel } from "./verdict.js";
import { milliseconds } from "./words.js";

const byId = (id) => document.getElementById(id);
/** Reasons of a refusal that a model may decide about, if it is asked to. */
const MENDABLE = new Set(["not_found", "ambiguous", "open_intent", "stale"]);
const OPTIONS = ["mode", "format", "scope", "decide", "draft", "policy", "min_certainty"];

const service = new ServiceNow(byId("service"), byId("model"));
const source = new Source(complain);
const live = new LiveTokens(byId("tokens"));

/** What is being applied, or null. */
let running = null;
/** What was shown last, if it can be written: the request and its answer. */
let writable = null;

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

function requestBody() {
  const body = { ...source.fields, edit: byId("edit").value, trace: true };
  for (const name of OPTIONS) body[name] = byId(name).value;
  if (byId("reuse").value) body.reuse = byId("reuse").value;
  if (byId("instruction").value.trim()) body.instruction = byId("instruction").value.trim();
  return body;
}

function clear() {
  writable = null;
  byId("problem").hidden = true;
  byId("write-row").hidden = true;
  live.clear();
  for (const id of ["phases", "verdict", "difference", "cost"]) byId(id).replaceChildren();
}

/** Applies what is in the form; `instead` are fields of the request that take the place of the form's. */
async function apply(instead = {}) {
  if (running) return;
  let body;
  try {
    if (!byId("edit").value.trim()) throw new Error("Paste an edit first.");
    body = { ...requestBody(), ...instead };
  } catch (error) {
    complain(error);
    say("Nothing was sent.");
    return;
  }
  clear();
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
    phases.finish(answer.timings);
    await show(body, answer);
  }, { canBeStopped: true });
}

/** Does the work, which nothing else is begun beside, and tells what became of it. */
async function watched(text, work, { canBeStopped }) {
  running = new AbortController();
  byId("apply").disabled = true;
  byId("write").disabled = true;
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
    byId("apply").disabled = false;
    byId("write").disabled = false;
    byId("cancel").disabled = true;
    byId("result").removeAttribute("aria-busy");
  }
}

async function show(body, answer) {
  say(`${statusText(answer)} in ${milliseconds(answer.timings.total_ms)}.`);
  live.clear(); // what is not drawn yet is in the answer
  put("verdict", verdictPanel(answer));
  put("difference", differencePanel(answer.files));
  put("tokens", tokensPanel(answer.trace, answer.scope));
  showNews(byId("tokens"));
  if (source.loaded && answer.status === "merged") {
    writable = { body, answer };
    byId("write").textContent = `Write to ${body.path}`;
    byId("write-note").textContent = "exactly what is shown, if the file is still the one that was loaded";
    byId("write-row").hidden = false;
  }
  await service.look();
  put("cost", costPanel(answer, service.window));
}

function put(id, panel) {
  byId(id).replaceChildren(...(panel ? [panel] : []));
}

/**
 * Has what is shown written. A model might answer otherwise if it was asked again: the request is a replacement of the
 * whole text, which a rule decides, and it is tried before it is written.
 */
async function write() {
  if (!writable || running) return;
  const { body, answer } = writable;
  await watched(`Writing ${body.path} …`, async () => {
    const request = answer.method === "model" ? asReplacement(body, answer) : { ...body, trace: false };
    const tried = await post("apply", { ...request, write: false });
    if (tried.status !== "merged" || tried.sha256 !== answer.sha256) {
      throw new Error("Nothing was written: the service would write something else now. Apply the edit again.");
    }
    const done = await post("apply", { ...request, write: true });
    byId("write-row").hidden = true;
    writable = null;
    say(`Written: ${body.path}, sha256 ${done.sha256.slice(0, 12)}….`);
    await source.load();
  }, { canBeStopped: false });
}

function asReplacement(body, answer) {
  const edit = JSON.stringify({ old_string: withoutMark(source.loaded.text), new_string: withoutMark(answer.merged) });
  const { workspace, path, expected_sha256 } = body;
  return { workspace, path, expected_sha256, edit, format: "replace", mode: "deterministic", policy: "lenient" };
}

function withoutMark(text) {
  return text.replace(/^\ufeff/, "");
}

/** The phases as they begin; when all is done, with the time that the service spent on each. */
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

  finish(timings) {
    this.#last?.classList.remove("now");
    const rest = new Map(Object.entries(timings));
    for (const item of this.#list.children) {
      const name = `${item.dataset.phase}_ms`;
      if (rest.has(name)) item.append(el("small", {}, ` ${milliseconds(rest.get(name))}`));
      rest.delete(name); // a phase that came twice has its time once, of both
    }
  }
}

function tryExample() {
  const example = EXAMPLES[byId("example").value];
  if (!example) return;
  source.paste(example.name, example.text);
  byId("edit").value = example.edit;
  byId("mode").value = example.mode;
  say(`An example: ${example.title}. Apply it.`);
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
byId("example").append(...EXAMPLES.map((example, at) => el("option", { value: at }, example.title)));
byId("example").addEventListener("change", tryExample);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    apply();
  }
  if (event.key === "Escape") running?.abort();
});

begin();
