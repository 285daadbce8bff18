// Accepting and rejecting hunks makes the texts that it should, in any order, and loses nothing.

import assert from "node:assert/strict";
import { test } from "node:test";

import { hunksBetween, linesOf, type Change } from "../src/change.js";
import { Review, type Decision } from "../src/review.js";

const BEFORE = "one\ntwo\nthree\nfour\nfive\nsix\n";
const MERGED = "one\n2\nthree\nfour\nfive\n5b\nsix\n";

function changed(text: string, changes: readonly Change[]): string {
  return [...changes]
    .sort((a, b) => b.start - a.start)
    .reduce((before, { start, end, text: by }) => before.slice(0, start) + by + before.slice(end), text);
}

/** Decides as the editor does: the changes are made in the file's text, which is given back. */
function decide(review: Review, text: string, decisions: readonly Decision[]): string {
  const after = changed(text, review.changes(decisions));
  review.decide(decisions);
  assert.equal(after, review.text());
  return after;
}

test("what is accepted is merged, what is rejected stays", () => {
  const review = new Review(BEFORE, MERGED, "\n");
  assert.equal(review.hunks.length, 2);
  let text = decide(review, BEFORE, review.deciding("accepted", 0));
  text = decide(review, text, review.deciding("rejected", 1));
  assert.equal(text, "one\n2\nthree\nfour\nfive\nsix\n");
  assert.deepEqual([review.count("accepted"), review.count("rejected"), review.count("open")], [1, 1, 0]);
});

test("each hunk is a change of its own, and the rest of the file is not touched", () => {
  const review = new Review(BEFORE, MERGED, "\n");
  assert.deepEqual(review.changes(review.deciding("accepted")), [
    { start: 4, end: 7, text: "2" },
    { start: 24, end: 24, text: "5b\n" },
  ]);
});

test("random texts and decisions", () => {
  let seed = 11;
  const next = (most: number) => (seed = (seed * 48271) % 2147483647) % most;
  const text = () => Array.from({ length: next(9) }, () => ["a\n", "b\n", "\n", "c"][next(4)]).join("");
  const all: readonly Decision[] = ["open", "accepted", "rejected"];
  for (let round = 0; round < 5000; round++) {
    const [before, merged] = [text(), text()];
    const review = new Review(before, merged, "\n");
    let now = before;
    for (let step = 0; step < 4 && review.hunks.length; step++) {
      now = decide(review, now, review.deciding(all[next(3)] ?? "open", next(review.hunks.length)));
      const { text: shown, hunks } = review.show();
      const lines = shown.split("\n");
      for (const hunk of hunks) assert.ok(hunk.line + hunk.removed + hunk.added <= lines.length);
    }
    now = decide(review, now, review.hunks.map(() => "accepted"));
    assert.equal(now, merged);
    now = decide(review, now, review.hunks.map(() => "rejected"));
    assert.equal(now, before);
  }
});

test("undo and redo in the file are followed, another change is told", () => {
  const review = new Review(BEFORE, MERGED, "\n");
  const first = decide(review, BEFORE, review.deciding("accepted", 0));
  const second = decide(review, first, review.deciding("accepted", 1));
  assert.ok(review.follow(first));
  assert.deepEqual([review.decision(0), review.decision(1)], ["accepted", "open"]);
  assert.ok(review.follow(BEFORE));
  assert.equal(review.count("open"), 2);
  assert.ok(review.follow(second));
  assert.equal(review.count("accepted"), 2);
  assert.ok(!review.follow(`${second}# more\n`));
  assert.equal(review.text(), second);
});

test("an open hunk is shown with both texts, a decided one with that of the file", () => {
  const review = new Review(BEFORE, MERGED, "\n");
  assert.equal(review.show().text, "one\ntwo\n2\nthree\nfour\nfive\n5b\nsix");
  assert.deepEqual(review.show().hunks, [
    { line: 1, removed: 1, added: 1, decision: "open" },
    { line: 6, removed: 0, added: 1, decision: "open" },
  ]);
  review.decide(review.deciding("accepted", 0));
  review.decide(review.deciding("rejected", 1));
  assert.equal(review.show().text, "one\n2\nthree\nfour\nfive\nsix");
  assert.deepEqual(review.show().hunks, [
    { line: 1, removed: 0, added: 1, decision: "accepted" },
    { line: 5, removed: 0, added: 0, decision: "rejected" },
  ]);
});

test("the next open hunk is the one behind, or else the first", () => {
  const review = new Review("a\nk\nb\nk\nc\n", "1\nk\n2\nk\n3\n", "\n");
  assert.deepEqual([0, 1, 2].map((index) => review.nextOpen(index)), [1, 2, 0]);
  review.decide(review.deciding("rejected", 2));
  assert.deepEqual([0, 1, 2].map((index) => review.nextOpen(index)), [1, 0, 0]);
  review.decide(review.deciding("accepted"));
  assert.equal(review.nextOpen(0), -1);
});

test("a file with the line ends of Windows keeps them", () => {
  const review = new Review("a\r\nb\r\n", "a\nc\n", "\r\n");
  assert.equal(review.hunks.length, 1);
  assert.equal(decide(review, "a\r\nb\r\n", review.deciding("accepted")), "a\r\nc\r\n");
});

test("changes with only blank lines between them are one hunk", () => {
  const hunks = (before: string, merged: string) => hunksBetween(linesOf(before), linesOf(merged));
  assert.deepEqual(hunks("a\n\nb\nc\n", "x\n\ny\nc\n"), [{ start: 0, end: 3, mergedStart: 0, mergedEnd: 3 }]);
  assert.equal(hunks("a\nk\nb\n", "x\nk\ny\n").length, 2);
  assert.deepEqual(hunks("same", "same"), []);
});
