// What is asked of the service.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";

import { applyBody, pathBelow, sha256 } from "../src/request.js";

const FILE = { text: "a = 1\n", path: "src/a.py", saved: new TextEncoder().encode("\ufeffa = 1\n") };

test("a saved file of a workspace is named, with the hash of its bytes", async () => {
  assert.deepEqual(await applyBody(FILE, "a = 2", "auto", "shop"), {
    workspace: "shop",
    path: "src/a.py",
    edit: "a = 2",
    mode: "auto",
    expected_sha256: createHash("sha256").update(FILE.saved).digest("hex"),
  });
});

test("other texts are sent along", async () => {
  const sent = { original: "a = 1\n", path: "src/a.py", edit: "a = 2", mode: "model", expected_sha256: await sha256("a = 1\n") };
  assert.deepEqual(await applyBody({ ...FILE, saved: null }, "a = 2", "model", "shop"), sent);
  assert.deepEqual(await applyBody(FILE, "a = 2", "model", ""), sent);
});

test("without an edit nothing is asked", async () => {
  await assert.rejects(applyBody(FILE, " \n", "auto", ""), /no edit/);
});

test("paths are named as the service names them", () => {
  assert.equal(pathBelow("/home/me/shop", "/home/me/shop/src/a.py"), "src/a.py");
  assert.equal(pathBelow("/c:/shop", "/c:/shop/src/a.py"), "src/a.py");
  assert.equal(pathBelow("/home/me/shop", "/home/me/shopping/a.py"), null);
  assert.equal(pathBelow("/", "/a.py"), "a.py");
});
