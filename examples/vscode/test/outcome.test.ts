// What replies come to.

import assert from "node:assert/strict";
import { test } from "node:test";

import { outcomeOf, type Merged } from "../src/outcome.js";

const reply = (status: number, body: unknown, retryAfter: string | null = null) => ({ status, body, retryAfter });

test("a merge, how sure and by whom, without the byte order mark that editors hide", () => {
  const by = { status: "merged", merged: "\ufeffa\n", timings: { total_ms: 1.26 }, usage: { forwards: 2 } };
  const how = (answer: object) => (outcomeOf(reply(200, { ...by, ...answer })) as { how: string }).how;
  assert.deepEqual(outcomeOf(reply(200, { ...by, method: "deterministic", rung: "exact", certainty: "certain" })), {
    kind: "merged",
    text: "a\n",
    how: "certain: by a rule (exact), 1.3 ms",
    isCertain: true,
    warnings: [],
  });
  assert.equal(
    how({ method: "deterministic", rung: "anchored", certainty: "likely", confidence: 0.9799 }),
    "likely (97.9 %): by the likeliest reading, no rule proves it, 1.3 ms",
  );
  assert.equal(
    how({ timings: { total_ms: 2500 }, method: "model", certainty: "model", confidence: null }),
    "model: by the model, which wrote it, 2 forwards, 2.5 s",
  );
  assert.match(how({ method: "model", certainty: "scored", confidence: 0.9 }), /^scored \(90\.0 %\): .* chose/);
});

test("what a lenient merge passed over, and what was put back, are warnings", () => {
  const checks = [{ name: "parse_errors", ok: false, detail: "line 3" }, { name: "no_op", ok: true, detail: "" }];
  const answer = { status: "merged", merged: "a\n", certainty: "model", method: "model", checks, repaired: [{ line: 3 }] };
  const outcome = outcomeOf(reply(200, answer)) as Merged;
  assert.equal(outcome.isCertain, false);
  assert.deepEqual(outcome.warnings, [
    "check parse_errors: line 3",
    "lines that the model changed without need, put back: 1",
  ]);
});

test("nothing to do, and a rejected merge with the checks that failed", () => {
  assert.equal(outcomeOf(reply(200, { status: "noop", merged: "a" })).kind, "noop");
  const checks = [{ name: "no_op", ok: true, detail: "" }, { name: "parse_errors", ok: false, detail: "line 3" }];
  assert.deepEqual(outcomeOf(reply(200, { status: "rejected", merged: "a", checks })), {
    kind: "rejected",
    text: "a",
    message: "The merge is rejected: parse_errors.",
    details: "parse_errors: line 3",
  });
});

test("a refusal says why and what to send instead", () => {
  const reasons = [
    {
      code: "not_found",
      reason: "The SEARCH lines do not stand in the file.",
      suggestion: "Copy them.",
      nearest: "3 | limit = 10",
      candidates: [{ score: 0.5, why: "the first", diff: "-a\n+b" }],
    },
  ];
  const outcome = outcomeOf(reply(422, { detail: "It does not apply.", reasons }));
  assert.equal(outcome.kind, "refused");
  const { details } = outcome as { details: string };
  for (const part of ["not_found", "Send instead: Copy them.", "3 | limit = 10", "the first", "+b"]) {
    assert.ok(details.includes(part), part);
  }
});

test("stale files, missing tokens and a busy model tell what to do", () => {
  const message = (status: number, after: string | null = null) =>
    (outcomeOf(reply(status, { detail: "So it is" }, after)) as { message: string }).message;
  assert.match(message(409), /Nothing was changed/);
  assert.match(message(401), /Set the service's token/);
  const wanted = (status: number) => (outcomeOf(reply(status, { detail: "" })) as { wantsToken: boolean }).wantsToken;
  assert.deepEqual([401, 403, 500].map(wanted), [true, false, false]);
  assert.match(message(429, "7"), /Try again in 7 s/);
});

test("whatever comes is an outcome", () => {
  for (const body of [null, "text", [], 1, {}, { status: "merged" }, { status: "other", merged: "" }]) {
    assert.equal(outcomeOf(reply(200, body)).kind, "refused");
    assert.equal(outcomeOf(reply(500, body)).kind, "refused");
  }
});
