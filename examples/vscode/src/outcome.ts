// What a reply means: a merge to be looked at, nothing to do, or why not and what to do about it.

import type { Reply } from "./client.js";

/** A file's text after the edit; `how` says how sure the service is and who decided, `warnings` what to look at. */
export interface Merged {
  readonly kind: "merged";
  readonly text: string;
  readonly how: string;
  readonly isCertain: boolean;
  readonly warnings: readonly string[];
}

export interface Noop {
  readonly kind: "noop";
  readonly message: string;
}

/** A check failed: the text is to be looked at, and not to be accepted. */
export interface Rejected {
  readonly kind: "rejected";
  readonly text: string;
  readonly message: string;
  readonly details: string;
}

/** No merge; `details` are the reasons, as they can be handed to the model that wrote the edit. */
export interface Refused {
  readonly kind: "refused";
  readonly message: string;
  readonly details: string;
  /** The service wants a token, or does not know the one that was sent. */
  readonly wantsToken: boolean;
}

export type Outcome = Merged | Noop | Rejected | Refused;

interface Fields {
  readonly [name: string]: unknown;
}

/** Reads a reply; whatever it is, it comes to an outcome. */
export function outcomeOf(reply: Reply): Outcome {
  if (!isFields(reply.body)) return refused(`The service answered ${reply.status} without JSON; is it Hunk?`);
  return reply.status === 200 ? answered(reply.body) : problem(reply.status, reply.body, reply.retryAfter);
}

function answered(answer: Fields): Outcome {
  const merged = answer["merged"];
  if (typeof merged !== "string") return refused("The service answered without a merged text.");
  const text = merged.replace(/^\ufeff/, "");
  switch (answer["status"]) {
    case "merged":
      return {
        kind: "merged",
        text,
        how: howMade(answer),
        isCertain: answer["certainty"] === "certain",
        warnings: warnings(answer),
      };
    case "noop":
      return { kind: "noop", message: "The edit is in the file already." };
    case "rejected": {
      const failed = list(answer["checks"]).filter((check) => check["ok"] === false);
      const names = failed.map((check) => string(check["name"])).join(", ");
      const details = failed.map((check) => `${string(check["name"])}: ${string(check["detail"])}`).join("\n");
      return { kind: "rejected", text, message: `The merge is rejected: ${names || "a check failed"}.`, details };
    }
    default:
      return refused(`The service answered with the unknown status ${string(answer["status"])}.`);
  }
}

/** How sure, in the service's word, who decided, and how long it took. */
function howMade(answer: Fields): string {
  const usage = isFields(answer["usage"]) ? answer["usage"] : {};
  const timings = isFields(answer["timings"]) ? answer["timings"] : {};
  const total = Number(timings["total_ms"] ?? 0);
  const time = total >= 1000 ? `${(total / 1000).toFixed(1)} s` : `${total.toFixed(total < 10 ? 1 : 0)} ms`;
  const confidence = answer["confidence"];
  const share = typeof confidence === "number" ? ` (${(Math.floor(confidence * 1000) / 10).toFixed(1)} %)` : "";
  return `${string(answer["certainty"])}${share}: ${whoDecided(answer, usage)}, ${time}`;
}

function whoDecided(answer: Fields, usage: Fields): string {
  if (answer["certainty"] === "likely") return "by the likeliest reading, no rule proves it";
  if (answer["method"] === "deterministic") return `by a rule (${string(answer["rung"])})`;
  const who = answer["certainty"] === "scored" ? "by a reading that the model chose" : "by the model, which wrote it";
  return `${who}, ${string(usage["forwards"])} forwards`;
}

/** Checks that failed and yet let the merge pass, and lines of a model that were put back. */
function warnings(answer: Fields): string[] {
  const failed = list(answer["checks"]).filter((check) => check["ok"] === false);
  const repaired = list(answer["repaired"]).length;
  return [
    ...failed.map((check) => `check ${string(check["name"])}: ${string(check["detail"])}`),
    ...(repaired ? [`lines that the model changed without need, put back: ${repaired}`] : []),
  ];
}

function problem(status: number, fields: Fields, retryAfter: string | null): Refused {
  const detail = string(fields["detail"]) || string(fields["title"]) || `The service answered ${status}.`;
  const details = list(fields["reasons"]).map(reasonText).join("\n\n");
  const wait = retryAfter ? `in ${retryAfter} s` : "in a moment";
  switch (status) {
    case 401:
      return { ...refused(`${detail} (command “Hunk: Set the service's token”)`), wantsToken: true };
    case 409:
      return refused(`${detail}. Nothing was changed: save the file, or wait until the service sees it, and try again.`);
    case 429:
    case 503:
      return { ...refused(`${detail} Try again ${wait}.`), details };
    default:
      return { ...refused(detail), details };
  }
}

function reasonText(reason: Fields): string {
  const parts = [`${string(reason["code"])}: ${string(reason["reason"])}`];
  if (reason["suggestion"]) parts.push(`Send instead: ${string(reason["suggestion"])}`);
  if (reason["nearest"]) parts.push(`The nearest place:\n${string(reason["nearest"])}`);
  for (const reading of list(reason["candidates"])) {
    parts.push(`A reading (${string(reading["why"])}):\n${string(reading["diff"])}`);
  }
  return parts.join("\n");
}

function refused(message: string): Refused {
  return { kind: "refused", message, details: "", wantsToken: false };
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function list(value: unknown): Fields[] {
  return Array.isArray(value) ? value.filter(isFields) : [];
}

function string(value: unknown): string {
  return typeof value === "string" ? value : value === undefined || value === null ? "" : String(value);
}
