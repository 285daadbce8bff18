// The page in a real browser, before a real service whose model writes what the test says (test_browser.py).

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";

import {
  apply,
  choose,
  diffRows,
  launch,
  onPage,
  outcome,
  picture,
  seriousFaults,
  text,
} from "./browser.mjs";

const { URL_OPEN, URL_WITH_TOKEN, TOKEN, ROOT } = process.env;
const EDIT = "<<<<<<< SEARCH\nLIMIT = 100\n=======\nLIMIT = 25\n>>>>>>> REPLACE\n";
const STRANGE = "<img src=x onerror='window.pwned=1'>.py";
const REFUSED = [/status of 422/, /status of 409/];

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

const page = (name, options, body) => test(name, () => onPage(browser, URL_OPEN, options, body));
/** Has the model write what it was told nothing about: it goes on and on. */
async function askForMuch(page) {
  await page.check("#source-paste");
  await page.fill("#text", "value = 1\n".repeat(150));
  await page.$eval("details.options", (details) => (details.open = true));
  await page.selectOption("#mode", "model");
  await page.selectOption("#draft", "none");
  await page.fill("#edit", "value = 2");
  await page.press("#edit", "Control+Enter");
}

const onDisk = (name) => fs.readFileSync(path.join(ROOT, name), "utf8");

page("it loads, and says what the service does", {}, async (page) => {
  assert.equal(await page.title(), "Hunk");
  assert.match(await text(page, "#model"), /^smollm2-135m, ready, float32 weights$/);
  const tiles = await text(page, "#service");
  for (const name of ["Running", "Waiting", "KV pages", "Prefix hits", "Approximate"]) assert.ok(tiles.includes(name));
  assert.ok(await page.locator("#source-workspace").isChecked());
  assert.ok((await page.locator("#paths option").allTextContents()).includes("limits.py"));
  await page.fill("#filter", "deep LIM");
  assert.deepEqual(await page.locator("#paths option").allTextContents(), ["deep/er/limits.py"]);
});

page("an edit that a rule decides is shown, written, and refused when the file has changed", { expected: REFUSED }, async (page) => {
  await choose(page, "deep/er/limits.py");
  const before = onDisk("deep/er/limits.py");
  assert.equal(await page.inputValue("#text"), before);
  assert.match(await apply(page, EDIT), /^Merged in /);
  const rows = await diffRows(page);
  assert.deepEqual(rows.filter(([sign]) => sign !== " "), [["−", "LIMIT = 100"], ["+", "LIMIT = 25"]]);
  assert.match(await text(page, "#verdict"), /a rule, without the model/);
  assert.match(await text(page, "#cost"), /No forward pass/);
  assert.equal(await page.locator("#tokens section").count(), 0);
  assert.equal(onDisk("deep/er/limits.py"), before, "nothing is written before it is asked for");

  await page.click("#write");
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Written"));
  const written = before.replace("LIMIT = 100", "LIMIT = 25");
  assert.equal(onDisk("deep/er/limits.py"), written);
  await page.waitForFunction((expected) => document.getElementById("text").value === expected, written);

  fs.writeFileSync(path.join(ROOT, "deep/er/limits.py"), `# changed\n${written}`);
  assert.match(await apply(page, EDIT.replaceAll("25", "50").replaceAll("100", "25")), /^Not done/);
  assert.match(await text(page, "#problem"), /Load it again/);
  await page.getByRole("button", { name: "Load the file again" }).click();
  await page.waitForFunction(() => document.getElementById("text").value.startsWith("# changed"));
  await page.keyboard.press("Control+Enter");
  assert.match(await outcome(page), /^Merged in /);
  assert.equal(onDisk("deep/er/limits.py"), `# changed\n${written}`);
});

page("a file that changes between look and write is not written", { expected: REFUSED }, async (page) => {
  await choose(page, "races.py");
  assert.match(await apply(page, EDIT), /^Merged in /);
  fs.writeFileSync(path.join(ROOT, "races.py"), "LIMIT = 7\n");
  await page.click("#write");
  await page.waitForFunction(() => !document.getElementById("problem").hidden);
  assert.match(await text(page, "#problem"), /nothing was written/);
  assert.equal(onDisk("races.py"), "LIMIT = 7\n");
});

page("every token that the model read and wrote is shown, and what it cost", {}, async (page) => {
  await page.selectOption("#example", { label: "the model writes" });
  const body = new Promise((done) => {
    page.on("response", async (response) => {
      if (response.url().endsWith("/apply")) done(await response.text());
    });
  });
  await page.press("#edit", "Control+Enter");
  assert.match(await outcome(page), /^Merged in /);
  const answer = JSON.parse(/^event: result\ndata: (.*)$/m.exec(await body)[1]);

  const phases = await page.$$eval("#phases li", (items) => items.map((item) => item.dataset.phase));
  assert.deepEqual(phases, ["parse", "merge", "scope", "prompt", "prefill", "decode", "verify"]);
  assert.equal(await page.locator("#phases .now").count(), 0);

  const rows = await diffRows(page);
  assert.deepEqual(
    rows.filter(([sign]) => sign === "+").map(([, line]) => line),
    [
      '        """Start anew for a client; whether it was known."""',
      "        return self.seen.pop(client, None) is not None",
    ],
  );
  const runs = await page.$$eval(".answer .tokens", (boxes) =>
    boxes.map((box) =>
      [...box.querySelectorAll(".run")].map((run) => [run.className.split(" ")[1], run.lastChild.textContent]),
    ),
  );
  assert.equal(runs.length, 2);
  const written = runs[1].map(([, part]) => part).join("");
  assert.equal(written.replace("⟨end⟩", "").trimEnd(), answer.merged.trimEnd());
  assert.ok(runs[0].map(([, part]) => part).join("").includes("def forget(self, client):"));
  assert.ok(runs[0].some(([kind]) => kind === "recomputed"));
  assert.ok(runs[1].some(([kind]) => kind === "copied"));

  const { usage } = answer;
  assert.ok(usage.accepted > 100);
  const legend = await text(page, ".legend");
  const counts = { cached: usage.cached, copied: usage.accepted, generated: usage.completion - usage.accepted };
  for (const [kind, tokens] of Object.entries(counts)) {
    if (tokens) assert.match(legend, new RegExp(`${kind} ${tokens} `));
    else assert.ok(!legend.includes(kind), `there are no ${kind} tokens`);
  }
  const cost = await text(page, "#cost");
  assert.match(cost, new RegExp(`${usage.forwards} forwards?, `));
  assert.match(cost, /Prefix hit rate\s+\d+(\.\d)? %\s+\d+(\.\d)? %/);
  for (const phase of ["prefill", "decode", "total"]) assert.match(cost, new RegExp(`${phase}\\s+[\\d.]+ m?s`));
});

page("what the model wrote is written as it was shown, with the file’s own line ends", {}, async (page) => {
  const before = onDisk("windows.py");
  assert.ok(before.startsWith("\ufeff") && before.includes("\r\n"));
  await choose(page, "windows.py");
  const edit = await page.evaluate(async () => {
    const { href } = document.querySelector("link[rel=stylesheet]");
    const { EXAMPLES } = await import(new URL("examples.js", href));
    return EXAMPLES[2].edit;
  });
  assert.match(await apply(page, edit, { mode: "model" }), /^Merged in /);
  await page.click("#write");
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Written"));
  const expected = before
    .replace('"""Start anew for a client."""', '"""Start anew for a client; whether it was known."""')
    .replace("        self.seen.pop(client, None)", "        return self.seen.pop(client, None) is not None");
  assert.equal(onDisk("windows.py"), expected);
});

page("readings that the model weighed are told apart from what it writes", {}, async (page) => {
  await page.selectOption("#example", { label: "the model weighs" });
  await page.press("#edit", "Control+Enter");
  assert.match(await outcome(page), /^Merged in /);
  assert.match(await text(page, "#verdict"), /model: the model wrote it/, "none is sure enough");
  assert.match(await text(page, "#verdict"), /Readings that the model weighed[^]*\d+ %/);
  assert.ok((await page.locator(".answer .run.scored").count()) > 0);
  assert.ok((await page.locator(".answer .run:not(.scored)").count()) > 0);
});

page("a refusal tells why and what to send instead", { expected: REFUSED }, async (page) => {
  await choose(page, "limits.py");
  const edit = "<<<<<<< SEARCH\nLIMITS = 1000\n=======\nLIMIT = 1\n>>>>>>> REPLACE\n";
  assert.match(await apply(page, edit, { mode: "deterministic" }), /^Not done/);
  const problem = await text(page, "#problem");
  assert.match(problem, /Send instead: /);
  assert.match(problem, /LIMIT = 100/);
  assert.ok(await page.locator("#write-row").isHidden());
});

page("the model is asked about a refused edit by a button, once, and what it writes is told apart", { expected: REFUSED }, async (page) => {
  await choose(page, "twice.ini");
  const before = onDisk("twice.ini");
  const edit = "<<<<<<< SEARCH\nretries = 3\n=======\nretries = 5\n>>>>>>> REPLACE\n";
  assert.match(await apply(page, edit), /^Not done/);
  assert.match(await text(page, "#problem"), /ambiguous/);
  assert.match(await text(page, "#problem"), /Reading 2/);
  assert.equal(await page.locator("#tokens section").count(), 0, "no model was asked");

  await page.click("#ask-model");
  assert.match(await outcome(page), /^Merged in /);
  assert.match(await text(page, "#verdict"), /model: the model wrote it/);
  assert.ok(await page.locator("#problem").isHidden());
  assert.equal(await page.inputValue("#mode"), "auto", "the next edit is not the model's");
  assert.equal(onDisk("twice.ini"), before);
  await page.click("#write");
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Written"));
  assert.equal(onDisk("twice.ini"), before.replace("retries = 3", "retries = 5"));

  await choose(page, "limits.py");
  await apply(page, "*** Begin Patch\n*** Update File: a.py\n@@\n-a\n+b\n*** Update File: b.py\n@@\n-a\n+b\n*** End Patch\n", { format: "auto" });
  assert.match(await text(page, "#problem"), /several_files/);
  assert.equal(await page.locator("#ask-model").count(), 0, "a model cannot mend that");
});

page("a merge that a check rejects cannot be written", {}, async (page) => {
  await choose(page, "limits.py");
  assert.match(await apply(page, "LIMIT = 1\n", { format: "whole" }), /^Rejected/);
  assert.match(await text(page, "#verdict"), /✗ failed/);
  assert.ok(await page.locator("#write-row").isHidden());
});

page("the model’s work is seen while it goes on, and can be stopped", {}, async (page) => {
  await page.check("#source-paste");
  await askForMuch(page);
  await page.waitForFunction(() => document.querySelectorAll(".tokens.live .run").length > 3);
  assert.equal(await text(page, "#phases .now"), "decode");
  assert.equal(await page.locator("#verdict section").count(), 0, "there is no answer yet");
  assert.match(await text(page, "#status"), /^Phase: decode/);
  await page.keyboard.press("Escape");
  assert.match(await outcome(page), /^Stopped/);
  const idle = async () => (await (await fetch(`${URL_OPEN}/stats`)).json()).queue.running === 0;
  for (let tries = 0; !(await idle()); tries++) assert.ok(tries < 200, "the model still works");
});

page("it can be used by the keyboard alone", {}, async (page) => {
  const stops = [];
  const tab = async (id) => {
    for (let presses = 0; presses < 60; presses++) {
      await page.keyboard.press("Tab");
      const at = await page.evaluate(() => {
        const focused = document.activeElement;
        const style = getComputedStyle(focused);
        const seen = focused.matches(":focus-visible") && style.outlineStyle !== "none";
        return { id: focused.id || focused.name || focused.className || focused.tagName, seen };
      });
      if (at.id === "BODY") continue;
      assert.ok(at.seen, `the focus on ${at.id} is not seen`);
      stops.push(at.id);
      if (at.id === id) return;
    }
    assert.fail(`${id} is not reached by the keyboard: ${stops.join(", ")}`);
  };
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await tab("example");
  await page.keyboard.press("ArrowDown");
  await page.waitForFunction(() => document.getElementById("edit").value !== "");
  await tab("text");
  await tab("edit");
  await tab("apply");
  await page.keyboard.press("Enter");
  assert.match(await outcome(page), /^Merged in /);
  await tab("layout");
  await page.keyboard.press("ArrowRight");
  await page.waitForSelector("table.diff.split");
  await tab("code");
  assert.ok((await page.locator("[role=status]").getAttribute("aria-live")) === "polite");
});

for (const colorScheme of ["light", "dark"]) {
  page(`axe finds nothing serious, ${colorScheme}`, { colorScheme, reducedMotion: "reduce", expected: REFUSED }, async (page) => {
    assert.deepEqual(await seriousFaults(page), []);
    await askForMuch(page);
    await page.waitForSelector("[aria-busy=true]");
    const animation = await page.$eval(".status", (node) => getComputedStyle(node, "::before").animationName);
    assert.equal(animation, "none");
    await page.keyboard.press("Escape");
    assert.match(await outcome(page), /^Stopped/);
    await page.selectOption("#draft", "copy");
    await page.selectOption("#example", { label: "the model writes" });
    await page.press("#edit", "Control+Enter");
    assert.match(await outcome(page), /^Merged in /);
    await page.$$eval("details", (all) => all.forEach((details) => (details.open = true)));
    assert.deepEqual(await seriousFaults(page), []);
    await page.check("input[name=layout][value=split]");
    assert.deepEqual(await seriousFaults(page), []);
    await page.selectOption("#mode", "deterministic");
    await apply(page, "<<<<<<< SEARCH\nnowhere to be found\n=======\n1\n>>>>>>> REPLACE\n");
    assert.deepEqual(await seriousFaults(page), []);
  });
}

page("names and texts that are markup stay text", { expected: REFUSED }, async (page) => {
  await choose(page, STRANGE);
  const markup = `</textarea><script>window.pwned=1</script><svg onload="window.pwned=1">`;
  assert.ok((await page.inputValue("#text")).includes(markup));
  const edit = `<<<<<<< SEARCH\n${markup}\n=======\n${markup}<img src=x onerror="window.pwned=1">\n>>>>>>> REPLACE\n`;
  assert.match(await apply(page, edit), /^Merged in /);
  assert.ok((await diffRows(page)).some(([sign, line]) => sign === "+" && line.endsWith('onerror="window.pwned=1">')));
  assert.match(await apply(page, edit, { mode: "model" }), /./);
  const lost = "<<<<<<< SEARCH\n<b>not</b> to be <script>found()</script>\n=======\n<i>x</i>\n>>>>>>> REPLACE\n";
  await apply(page, lost, { mode: "deterministic" });
  assert.match(await text(page, "#problem"), /<img src=x/);
  await page.fill("#filter", "<b>");
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  assert.equal(await page.locator("main img, main svg, main script, #problem b img").count(), 0);
});

page("it is whole on a narrow screen", { viewport: { width: 360, height: 780 }, hasTouch: true }, async (page) => {
  await page.selectOption("#example", { label: "the model writes" });
  await page.tap("#apply");
  assert.match(await outcome(page), /^Merged in /);
  const widths = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(widths[0] <= widths[1], `the page is ${widths[0]} wide on ${widths[1]}`);
  assert.deepEqual(await seriousFaults(page), []);
  await page.$eval("#result", (node) => node.scrollIntoView());
  await picture(page, "narrow");
});

page("ten thousand lines are drawn in slices, between which the page answers", {}, async (page) => {
  await choose(page, "big.py");
  assert.equal((await page.inputValue("#text")).split("\n").length, 10_001);
  await page.evaluate(() => {
    document.getElementById("edit").value = document.getElementById("text").value.replaceAll("value", "price");
  });
  await page.$eval("details.options", (details) => (details.open = true));
  await page.selectOption("#format", "whole");
  await page.selectOption("#policy", "lenient");
  await page.evaluate(() => {
    window.sizes = new Set();
    const look = () => window.sizes.add(document.querySelectorAll("table.diff.unified").length);
    setInterval(look, 1);
  });
  await page.press("#edit", "Control+Enter");
  await outcome(page);
  await page.waitForFunction(() => document.querySelectorAll("table.diff tr").length >= 20_000);
  assert.ok((await page.evaluate(() => window.sizes.size)) > 20, "the rows came at once");
  await page.check("input[name=layout][value=split]");
  await page.check("input[name=layout][value=unified]");
  await page.waitForFunction(() => document.querySelectorAll("table.diff.unified tr").length >= 20_000);
  assert.equal(await page.locator("table.diff.split").count(), 0, "what is drawn for nobody any more ends");
});

page("events and diffs are read the same however they are cut", {}, async (page) => {
  const found = await page.evaluate(async () => {
    const { href } = document.querySelector("link[rel=stylesheet]");
    const { EventParser } = await import(new URL("sse.js", href));
    const { rowsOf, pairsOf } = await import(new URL("unified.js", href));
    const stream = ": hi\r\n\r\nevent: phase\r\ndata: {\"a\": 1}\r\n\r\ndata: one\ndata:two\n\nevent: x\n\nid: 3\rdata: é\r\r";
    const read = (cuts) => {
      const events = [];
      const parser = new EventParser((name, data) => events.push([name, data]));
      let start = 0;
      for (const cut of [...cuts, stream.length]) {
        parser.push(stream.slice(start, cut));
        start = cut;
      }
      parser.push("");
      return JSON.stringify(events);
    };
    const ways = new Set();
    for (let first = 0; first < stream.length; first++) {
      for (let second = first; second < stream.length; second++) ways.add(read([first, second]));
    }
    const diff = "--- a/x\n+++ b/x\n@@ -1,4 +1,3 @@\n one\n-two\n-three\n+--- 2\n four\n\\ No newline at end of file\n";
    const rows = rowsOf(diff);
    return { ways: [...ways], rows: rows.map((row) => [row.kind, row.text]), pairs: pairsOf(rows).length };
  });
  assert.equal(found.ways.length, 1, found.ways.join("\n"));
  const events = JSON.parse(found.ways[0]);
  assert.deepEqual(events.slice(0, 2), [["phase", '{"a": 1}'], ["message", "one\ntwo"]]);
  assert.deepEqual(found.rows.slice(2), [
    ["hunk", "@@ -1,4 +1,3 @@"],
    ["same", "one"],
    ["removed", "two"],
    ["removed", "three"],
    ["added", "--- 2"],
    ["same", "four"],
    ["note", "No newline at end of file"],
  ]);
});

test("a service that asks for a token gets it, and only from who typed it in", () =>
  onPage(browser, URL_WITH_TOKEN, { expected: [/status of 401/] }, async (page) => {
    await page.waitForSelector("#access:not([hidden])");
    assert.equal(await page.evaluate(() => document.activeElement.id), "token");
    await page.fill("#token", "wrong");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#access:not([hidden])");
    assert.match(await text(page, "#status"), /does not know this token/);
    await page.fill("#token", TOKEN);
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelectorAll("#paths option").length > 0);
    assert.ok(await page.locator("#access").isHidden());
    assert.equal(await page.evaluate(() => localStorage.length), 0);
    await choose(page, "limits.py");
    assert.match(await apply(page, EDIT), /^Merged in /);
    assert.deepEqual(await page.context().cookies(), []);
    assert.ok(!page.url().includes(TOKEN));
    await page.click("#forget-token");
    await page.waitForSelector("#access:not([hidden])");
  }));

page("pictures", { colorScheme: "light", viewport: { width: 1200, height: 1000 } }, async (page) => {
  await choose(page, "limits.py");
  const edit = await page.evaluate(async () => {
    const { href } = document.querySelector("link[rel=stylesheet]");
    return (await import(new URL("examples.js", href))).EXAMPLES[2].edit;
  });
  await page.fill("#filter", "limits");
  assert.match(await apply(page, edit.replace("whether it was known", "whether it was there"), { mode: "model" }), /^Merged/);
  await page.$eval("details.options", (details) => (details.open = false));
  await page.evaluate(() => {
    document.activeElement.blur();
    scrollTo(0, 0);
  });
  await picture(page, "light", { fullPage: true, clip: { x: 0, y: 0, width: 1200, height: 1640 } });
  await page.emulateMedia({ colorScheme: "dark" });
  await page.check("input[name=layout][value=split]");
  const lines = await page.$$eval("table.diff.split td.line", (cells) => cells.map((cell) => cell.clientWidth));
  assert.ok(Math.min(...lines) > 200, `the lines side by side are ${Math.min(...lines)} wide`);
  await picture(page, "dark");
});
