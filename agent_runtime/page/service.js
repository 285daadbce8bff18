// Shows what the service does just now: its queue, its cache, the rates of the last minutes.

import { get } from "./api.js";
import { el } from "./dom.js";
import { bytes, count, milliseconds, percent } from "./words.js";

const EVERY_MS = 2000;
const EVERY_MS_WITHOUT = 10_000;

/** Asks the service again and again while the page is seen. */
export class ServiceNow {
  #tiles;
  #model;
  #timer = 0;
  window = null;

  constructor(tiles, model) {
    this.#tiles = tiles;
    this.#model = model;
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Look now, and then from time to time. */
  async look() {
    clearTimeout(this.#timer);
    if (document.visibilityState === "hidden") return;
    let next = EVERY_MS;
    try {
      this.#show(await get("stats"));
    } catch (problem) {
      next = EVERY_MS_WITHOUT;
      this.#model.textContent = problem.status === 401 ? "needs a token" : problem.message;
      this.#tiles.replaceChildren(tile("State", "not known"));
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.look(), next);
  }

  #show(stats) {
    const { model, queue, cache, window: recent } = stats;
    this.window = recent;
    this.#model.textContent = `${model.name}, ${model.ready ? "ready" : "loading"}`;
    const tiles = [
      tile("Model works on", count(queue.running), "requests"),
      tile("Waiting", count(queue.waiting), "requests"),
      ...(cache ? cacheTiles(cache) : []),
      tile("Prefix hit rate", percent(recent.prefix_hit_rate), minutes(recent)),
      tile("Approximate reuse", percent(recent.approximate_share), minutes(recent)),
      tile("Tokens a forward", recent.tokens_per_forward?.toFixed(1) ?? "–", minutes(recent)),
      tile("Requests", count(recent.requests), minutes(recent)),
    ];
    if (recent.total_ms) tiles.push(tile("Median time", milliseconds(recent.total_ms.p50), minutes(recent)));
    this.#tiles.replaceChildren(...tiles);
  }
}

function minutes(recent) {
  return `last ${Math.round(recent.seconds / 60)} min`;
}

function cacheTiles(cache) {
  const { pages, spans } = cache;
  const used = pages.in_use + pages.cached;
  const tiles = [tile("KV pages", `${percent(used / (pages.total || 1))}`, `${count(pages.cached)} kept for reuse`, used / pages.total)];
  if (spans) tiles.push(tile("Spans kept", `${count(spans.tokens)} tokens`, bytes(spans.bytes), spans.tokens / (spans.max_tokens || 1)));
  return tiles;
}

function tile(name, value, note = "", share = null) {
  const node = el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value, note ? el("small", {}, note) : null));
  if (share !== null) {
    const fill = el("span");
    fill.style.width = `${Math.min(100, share * 100)}%`;
    node.lastElementChild.append(el("span", { class: "meter", "aria-hidden": "true" }, fill));
  }
  return node;
}
