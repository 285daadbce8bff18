// Requests over real sockets: to a server of the test's own, and to a Hunk service where HUNK_URL names one.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import { apply, NoService, Unreachable } from "../src/client.js";
import { outcomeOf } from "../src/outcome.js";
import { applyBody, type ApplyBody } from "../src/request.js";

const FILE = { text: "limit = 10\nretries = 3\n", path: "limits.py", saved: null };
const EDIT = "<<<<<<< SEARCH\nlimit = 10\n=======\nlimit = 20\n>>>>>>> REPLACE\n";
const BODY: ApplyBody = {
  original: FILE.text,
  path: FILE.path,
  edit: EDIT,
  mode: "deterministic",
  expected_sha256: createHash("sha256").update(FILE.text).digest("hex"),
};

async function serving(
  answer: (request: IncomingMessage, body: string, response: ServerResponse) => void,
  work: (url: string) => Promise<void>,
): Promise<void> {
  const server: Server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.on("end", () => answer(request, Buffer.concat(parts).toString(), response));
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  try {
    await work(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

test("what is sent is the request, with the token, to the address below the URL", () =>
  serving(
    (request, body, response) => {
      assert.equal(request.method, "POST");
      assert.equal(request.url, "/behind/a/proxy/apply");
      assert.equal(request.headers.authorization, "Bearer secret");
      assert.deepEqual(JSON.parse(body), BODY);
      response.writeHead(429, { "Retry-After": "3" }).end('{"detail": "busy"}');
    },
    async (url) => {
      const reply = await apply({ url: `${url}/behind/a/proxy`, token: "secret", timeoutMs: 5000 }, BODY);
      assert.deepEqual(reply, { status: 429, body: { detail: "busy" }, retryAfter: "3" });
    },
  ));

test("without a token none is sent, and what is no JSON is told apart", () =>
  serving(
    (request, _, response) => {
      assert.equal(request.headers.authorization, undefined);
      response.writeHead(502).end("<html>");
    },
    async (url) => {
      const outcome = outcomeOf(await apply({ url, token: "", timeoutMs: 5000 }, BODY));
      assert.match((outcome as { message: string }).message, /502 without JSON/);
    },
  ));

test("a redirect is not followed: the text and the token stay here", () =>
  serving(
    (_, __, response) => response.writeHead(307, { Location: "http://localhost:1/apply" }).end(),
    (url) => assert.rejects(apply({ url, token: "secret", timeoutMs: 5000 }, BODY), Unreachable),
  ));

test("who does not answer in time, or at all, is unreachable; who cancels has cancelled", () =>
  serving(
    () => undefined,
    async (url) => {
      await assert.rejects(apply({ url, token: "", timeoutMs: 50 }, BODY), /within 0.05 s/);
      const isNotThere = (error: Error) => error instanceof NoService && /No Hunk service/.test(error.message);
      const cancelled = new AbortController();
      const asked = apply({ url, token: "", timeoutMs: 60_000 }, BODY, cancelled.signal);
      cancelled.abort();
      await assert.rejects(asked, (error: Error) => !(error instanceof Unreachable) && error.name === "AbortError");
      await assert.rejects(apply({ url: "http://127.0.0.1:1", token: "", timeoutMs: 5000 }, BODY), isNotThere);
    },
  ));

test("a token is not sent in the clear to another machine, and only http and https are asked", async () => {
  const ask = (url: string, token = "secret") => apply({ url, token, timeoutMs: 1000 }, BODY);
  await assert.rejects(ask("http://apply.example"), /not sent to apply.example in the clear/);
  await assert.rejects(ask("http://127.0.0.1.example"), /in the clear/);
  await assert.rejects(ask("file:///etc/passwd"), /http/);
  await assert.rejects(ask("nonsense"), /not a URL/);
});

test("a Hunk service merges, refuses and finds stale files", { skip: !process.env["HUNK_URL"] && "no HUNK_URL" }, async () => {
  const service = { url: process.env["HUNK_URL"] ?? "", token: process.env["HUNK_TOKEN"] ?? "", timeoutMs: 60_000 };
  const merged = outcomeOf(await apply(service, BODY));
  assert.equal(merged.kind, "merged");
  assert.equal((merged as { text: string }).text, "limit = 20\nretries = 3\n");
  assert.match((merged as { how: string }).how, /^certain: by a rule \(exact\)/);
  const done = await applyBody({ ...FILE, text: "limit = 20\nretries = 3\n" }, "limit = 20\nretries = 3\n", "auto", "");
  assert.equal(outcomeOf(await apply(service, done)).kind, "noop");
  const lost = outcomeOf(await apply(service, { ...BODY, edit: EDIT.replace("limit = 10", "nowhere") }));
  assert.equal(lost.kind, "refused");
  assert.match((lost as { details: string }).details, /Send instead/);
  const stale = outcomeOf(await apply(service, { ...BODY, expected_sha256: "0".repeat(64) }));
  assert.match((stale as { message: string }).message, /Nothing was changed/);
});
