// A change between two texts makes the one of the other, and is as small as it can be.

import assert from "node:assert/strict";
import { test } from "node:test";

import { changeBetween } from "../src/change.js";

function applied(before: string, after: string): string {
  const change = changeBetween(before, after);
  return before.slice(0, change.start) + change.text + before.slice(change.end);
}

test("random texts", () => {
  const parts = ["a", "b", "\n", "\r\n", "\r", "😀", "😁", "é", ""];
  let seed = 7;
  const next = () => (seed = (seed * 48271) % 2147483647);
  const text = () => Array.from({ length: next() % 7 }, () => parts[next() % parts.length]).join("");
  for (let round = 0; round < 20_000; round++) {
    const [before, after] = [text(), text()];
    assert.equal(applied(before, after), after);
    const { start, end, text: inserted } = changeBetween(before, after);
    assert.ok(start <= end && inserted.isWellFormed(), JSON.stringify([before, after]));
    assert.ok(before.slice(0, start).isWellFormed());
  }
});

test("only what differs is replaced", () => {
  assert.deepEqual(changeBetween("one\ntwo\nthree\n", "one\n2\nthree\n"), { start: 4, end: 7, text: "2" });
  assert.deepEqual(changeBetween("same", "same"), { start: 4, end: 4, text: "" });
  assert.deepEqual(changeBetween("a\r\nb", "a\nb"), { start: 1, end: 3, text: "\n" });
  assert.deepEqual(changeBetween("x😀y", "x😁y"), { start: 1, end: 3, text: "😁" });
});
