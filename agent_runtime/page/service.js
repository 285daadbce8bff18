// Shows what the service does just now: its queue, its cache, the rates of the last minutes.

import { get } from "./api.js";
import { el } from "./dom.js";
import { bytes, count, many, milliseconds, percent } from "./words.js";

const EVERY_MS = 2000;
const EVERY_MS_WITHOUT = 10_000;

/** Asks the service again and again while the page is seen. */
export class ServiceNow {
  #tiles;
  #model;
  #load;
  #timer = 0;
  #needsToken = false;
  window = null;

  constructor(tiles, model, load) {
    this.#tiles = tiles;
    this.#model = model;
    this.#load = load;
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Look now, and go on, with another token maybe. */
  begin() {
    this.#needsToken = false;
    return this.look();
  }

  /** Look now, and then from time to time. */
  async look() {
    clearTimeout(this.#timer);
    if (document.visibilityState === "hidden" || this.#needsToken) return;
    let next = EVERY_MS;
    try {
      this.#show(await get("stats"));
    } catch (problem) {
      next = EVERY_MS_WITHOUT;
      this.#needsToken = problem.status === 401; // who asks on without one is taken for somebody who guesses
      this.#model.textContent = this.#needsToken ? "needs a token" : problem.message;
      this.#load.textContent = "state not known";
      this.#tiles.replaceChildren(tile("State", "not known"));
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.look(), next);
  }

  #show(stats) {
    const { model, precision, queue, cache, window: recent } = stats;
    this.window = recent;
    const computes = precision ? `, ${precision.weights} weights` : "";
    this.#model.textContent = `${model.name}, ${model.ready ? "ready" : "loading"}${computes}`;
    this.#model.title = precision ? `activations in ${precision.activations}, KV in ${precision.kv}: ${precision.reason}` : "";
    this.#load.textContent = `${count(queue.running)} running, ${count(queue.waiting)} waiting`;
    this.#tiles.replaceChildren(
      tile("Running", count(queue.running), queue.running === 1 ? "request" : "requests"),
      tile("Waiting", count(queue.waiting)),
      ...(cache ? cacheTiles(cache) : []),
      tile(`Last ${Math.round(recent.seconds / 60)} min`, many(recent.requests, "request")),
      tile("Median", recent.total_ms ? milliseconds(recent.total_ms.p50) : "–"),
      tile("Prefix hits", percent(recent.prefix_hit_rate), "", recent.prefix_hit_rate),
      tile("Approximate", percent(recent.approximate_share), "", recent.approximate_share),
      tile("Tokens a forward", recent.tokens_per_forward?.toFixed(1) ?? "–"),
      ...Object.entries(recent.by_source).map(([source, by]) => draftTile(source, by)),
    );
  }
}

/** How much of what a source drafted was right. */
function draftTile(source, by) {
  const share = by.accepted / (by.drafted || 1);
  return tile(`Drafts: ${source.replace("_", " ")}`, percent(share), `in ${many(by.forwards, "forward")}`, share);
}

function cacheTiles(cache) {
  const { pages, spans } = cache;
  const used = pages.in_use + pages.cached;
  const share = used / (pages.total || 1);
  const tiles = [tile("KV pages", percent(share), `${count(pages.cached)} kept`, share)];
  if (spans) {
    const filled = spans.tokens / (spans.max_tokens || 1);
    tiles.push(tile("Spans", many(spans.tokens, "token"), bytes(spans.bytes), filled));
  }
  return tiles;
}

/** A name and a number, with a meter where it is a share. */
function tile(name, value, note = "", share = null) {
  const number = el("dd", {}, value, note ? el("small", {}, note) : null);
  const node = el("div", { class: "tile" }, el("dt", {}, name), number);
  if (share !== null) {
    const fill = el("span");
    fill.style.width = `${Math.min(100, share * 100)}%`;
    number.append(el("span", { class: "meter", "aria-hidden": "true" }, fill));
  }
  return node;
}
