// Talks to the service that this page came from, and to no other.

import { readEvents } from "./sse.js";

const TOKEN = "hunk-token";

/** A fault as the service tells it (problem details), or as the page had to put it. */
export class Problem extends Error {
  constructor(problem) {
    super(problem.detail || problem.title || "the service answered with an error");
    this.problem = problem;
    this.status = problem.status ?? 0;
    this.kind = String(problem.type ?? "").replace("urn:hunk:problem:", "");
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

async function send(path, { method = "GET", body, signal, accept = "application/json" } = {}) {
  const headers = { Accept: accept };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ type: "no-connection", title: "The service does not answer", detail: unreachable(error) });
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (problem.status === 401) window.dispatchEvent(new CustomEvent("hunk-needs-token", { detail: problem }));
  throw problem;
}

function unreachable(error) {
  return `no answer from ${location.host} (${error.message}); is \`hunk serve\` running?`;
}

async function problemOf(response) {
  const retryAfter = response.headers.get("Retry-After");
  let problem;
  try {
    problem = await response.json();
  } catch {
    problem = { title: `The service answered ${response.status}` };
  }
  return new Problem({ status: response.status, ...problem, retry_after: retryAfter });
}

export async function get(path, signal) {
  return (await send(path, { signal })).json();
}

export async function post(path, body, signal) {
  return (await send(path, { method: "POST", body, signal })).json();
}

/** Applies an edit; `onEvent(name, data)` gets what happens meanwhile. Gives the answer, or throws a Problem. */
export async function applyWatched(body, onEvent, signal) {
  const request = { method: "POST", body: { ...body, stream: true }, signal, accept: "text/event-stream" };
  const response = await send("apply", request);
  let answer = null;
  let problem = null;
  try {
    await readEvents(response, (name, text) => {
      const data = JSON.parse(text);
      if (name === "result") answer = data;
      else if (name === "problem") problem = new Problem(data);
      else onEvent(name, data);
    });
  } catch (error) {
    if (error.name === "AbortError" || answer || problem) throw problem ?? error;
    throw new Problem({ type: "no-connection", title: "The connection broke", detail: unreachable(error) });
  }
  if (problem) throw problem;
  if (!answer) throw new Problem({ type: "no-connection", title: "The answer ends too early", detail: "Try again." });
  return answer;
}
