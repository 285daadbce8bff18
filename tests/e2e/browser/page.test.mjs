// The page in a real browser, before a real service whose model writes what the test says (test_browser.py).

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";

import {
  CLIPBOARD,
  apply,
  choose,
  clipboard,
  diffRows,
  example,
  faintTexts,
  launch,
  moduleUrl,
  onPage,
  outcome,
  picture,
  seriousFaults,
  text,
  unfold,
} from "./browser.mjs";

const { URL_OPEN, URL_WITH_TOKEN, TOKEN, ROOT } = process.env;
const EDIT = "<<<<<<< SEARCH\nLIMIT = 100\n=======\nLIMIT = 25\n>>>>>>> REPLACE\n";
/** Two hunks of limits.py. */
const SEVERAL = `${EDIT}<<<<<<< SEARCH
        """Start anew for a client."""
=======
        r"""Begin anew for a client."""
>>>>>>> REPLACE
`;
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
  assert.ok(await page.locator("#service").isHidden(), "the figures are folded");
  assert.match(await text(page, "#load"), /^\d+ running, \d+ waiting$/);
  await page.click(".service summary");
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
  assert.match(await text(page, "#verdict"), /certain: a rule, and one place only/);
  await unfold(page);
  assert.match(await text(page, "#verdict"), /a rule, without the model/);
  assert.match(await text(page, "#cost"), /No forward pass/);
  assert.equal(await page.locator("#tokens details").count(), 0);
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
  await example(page, "The model writes");
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
  assert.ok(await page.locator("#tokens .legend").isHidden(), "it is folded when it is done");
  await unfold(page);
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
  await example(page, "The model weighs");
  await page.press("#edit", "Control+Enter");
  assert.match(await outcome(page), /^Merged in /);
  assert.match(await text(page, "#verdict"), /model: the model wrote it/, "none is sure enough");
  assert.match(await text(page, "#verdict"), /Readings that the model weighed[^]*\d+ %/);
  assert.ok((await page.locator(".answer .run.scored").count()) > 0);
  assert.ok((await page.locator(".answer .run:not(.scored)").count()) > 0);
});

page("a refusal tells why and what to send instead", { ...CLIPBOARD, expected: REFUSED }, async (page) => {
  await choose(page, "limits.py");
  const edit = "<<<<<<< SEARCH\nLIMITS = 1000\n=======\nLIMIT = 1\n>>>>>>> REPLACE\n";
  assert.match(await apply(page, edit, { mode: "deterministic" }), /^Not done/);
  const problem = await text(page, "#problem");
  assert.match(problem, /Send instead: /);
  assert.match(problem, /LIMIT = 100/);
  assert.ok(await page.locator("#take").isHidden());
  await page.getByRole("button", { name: "Copy the reasons for the model" }).click();
  await page.waitForFunction(() => document.getElementById("status").textContent === "The reasons are copied.");
  assert.equal(JSON.parse(await clipboard(page))[0].code, "not_found");
});

page("the model is asked about a refused edit by a button, once, and what it writes is told apart", { expected: REFUSED }, async (page) => {
  await choose(page, "twice.ini");
  const before = onDisk("twice.ini");
  const edit = "<<<<<<< SEARCH\nretries = 3\n=======\nretries = 5\n>>>>>>> REPLACE\n";
  assert.match(await apply(page, edit), /^Not done/);
  assert.match(await text(page, "#problem"), /ambiguous/);
  assert.match(await text(page, "#problem"), /Reading 2/);
  assert.equal(await page.locator("#tokens details").count(), 0, "no model was asked");

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
  assert.ok(await page.locator("#take").isHidden());
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
        return { id: focused.id || focused.name || (focused.dataset.choice && "choice") || focused.className || focused.tagName, seen };
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
  await tab("source-workspace");
  await tab("edit");
  await tab("apply");
  await tab("card");
  await page.keyboard.press("Enter");
  assert.notEqual(await page.inputValue("#edit"), "");
  assert.equal(await page.evaluate(() => document.activeElement.id), "apply");
  await page.keyboard.press("Enter");
  assert.match(await outcome(page), /^Merged in /);
  await tab("result");
  await tab("layout");
  await page.keyboard.press("ArrowRight");
  await page.waitForSelector("table.diff.split");
  await tab("code whole");
  await tab("choice");
  await page.keyboard.press("Space");
  assert.match(await text(page, "#take-note"), /no hunk is accepted/);
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
    await example(page, "The model writes");
    await page.press("#edit", "Control+Enter");
    assert.match(await outcome(page), /^Merged in /);
    await unfold(page);
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

page("on a phone it is whole, and the result comes into sight", { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, expected: REFUSED }, async (page) => {
  const whole = async () => {
    const widths = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(widths[0] <= widths[1], `the page is ${widths[0]} wide on ${widths[1]}`);
  };
  assert.ok(await page.locator(".keys").isHidden(), "there is no Ctrl key");
  await whole();
  await example(page, "The model writes");
  await page.tap("#apply");
  assert.match(await outcome(page), /^Merged in /);
  await whole();
  const top = await page.$eval("#result", (node) => node.getBoundingClientRect().top);
  assert.ok(Math.abs(top) < 60, `the result begins at ${top}`);
  const tail = await page.$eval("#difference .hunk", (node) => node.getBoundingClientRect().bottom);
  assert.ok(tail < 844, `the diff begins at ${tail}`);
  await picture(page, "phone");
  await unfold(page);
  await whole();
  assert.deepEqual(await seriousFaults(page), []);
  await page.selectOption("#mode", "deterministic");
  await page.fill("#edit", "<<<<<<< SEARCH\nnowhere to be found\n=======\n1\n>>>>>>> REPLACE\n");
  await page.tap("#apply");
  assert.match(await outcome(page), /^Not done/);
  assert.ok(await page.locator("#problem h3").evaluate((node) => node.getBoundingClientRect().bottom < innerHeight));
  await whole();
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
  onPage(browser, URL_WITH_TOKEN, { ...CLIPBOARD, expected: [/status of 401/] }, async (page) => {
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
    const command = await copiedCommand(page);
    assert.ok(!command.includes(TOKEN), "a command that is shared gives the token away");
    assert.match(runCommand(command, { HUNK_TOKEN: TOKEN }).merged, /^LIMIT = 25$/m);
    await page.click("#forget-token");
    await page.waitForSelector("#access:not([hidden])");
  }));

/** Whether an element is all in the window. */
const isInSight = (page, selector) =>
  page.locator(selector).first().evaluate((node) => {
    const { top, left, bottom, right, height } = node.getBoundingClientRect();
    return height > 0 && top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth;
  });

page("file, edit, Apply and result are one view", {}, async (page) => {
  const isOneView = async (...selectors) => {
    for (const selector of selectors) assert.ok(await isInSight(page, selector), `${selector} is out of sight`);
    assert.ok(await page.evaluate(() => document.documentElement.scrollHeight <= innerHeight), "the page scrolls");
  };
  await isOneView("#paths", "#text", "#edit", "#apply", "#status", ".card", ".service summary");
  assert.ok((await page.$eval("#paths", (node) => node.clientHeight)) > 9 * 16, "there is room for more than six files");
  await choose(page, "limits.py");
  await apply(page, EDIT);
  await page.$eval("details.options", (details) => (details.open = false));
  await isOneView("#paths", "#text", "#edit", "#apply", "#status", "#verdict .badge", "#write", "table.diff", "#cost summary");
  await page.click(".options summary");
  await page.setViewportSize({ width: 1280, height: 620 });
  await isOneView("#apply", "#status", "#verdict .badge", "#write");
});

page("binary files are not offered", {}, async (page) => {
  const offered = await page.locator("#paths option").allTextContents();
  assert.ok(offered.includes("limits.py") && !offered.some((name) => name.endsWith(".png")));
  assert.match(await text(page, "#paths-note"), /; 1 binary not offered$/);
});

page("a diff has the colours of its language, and marks the words that differ", {}, async (page) => {
  await choose(page, "limits.py");
  await apply(page, SEVERAL);
  const pieces = (selector) => page.$$eval(`#difference ${selector}`, (nodes) => nodes.map((node) => node.textContent));
  assert.deepEqual(await pieces("del mark"), ["100", "Start"]);
  assert.deepEqual(await pieces("ins mark"), ["25", "r", "Begin"]);
  assert.ok((await pieces(".syntax.keyword")).includes("def"));
  assert.ok((await pieces(".syntax.number")).includes("25"));
  assert.equal((await pieces("ins .syntax.string")).join(""), '"""Begin anew for a client."""');
  const found = await page.evaluate(async ([syntax, marks]) => {
    const { coloursOf } = await import(syntax);
    const { compareLines } = await import(marks);
    const texts = ["", "a = 'b' # c\r\n", '"""x\ny"""\n', "/* a\nb */ let c = `d\n${e}`; // f", "'", "a\\", "<!-- a\n -->", "é = 1_0.5e3"];
    const wrong = [];
    for (const name of ["a.py", "a.ts", "a.rs", "a.go", "a.rb", "a.sh", "a.toml", "a.json", "a.css", "a.sql", "a.html"]) {
      for (const given of texts) {
        const lines = coloursOf(given, name).map((line) => line.map(([, piece]) => piece).join(""));
        if (lines.join("\n") !== given) wrong.push([name, given]);
      }
    }
    const alphabet = ["a", "bc", " ", "(", "é", "\u{1f600}"];
    const line = () => Array.from({ length: Math.random() * 12 }, () => alphabet[Math.floor(Math.random() * alphabet.length)]).join("");
    const without = (given, ranges) => {
      let [kept, at] = ["", 0];
      for (const [from, to] of ranges) [kept, at] = [kept + given.slice(at, from), to];
      return kept + given.slice(at);
    };
    for (let round = 0; round < 500; round++) {
      const [before, after] = [line(), line()];
      const marked = compareLines(before, after);
      if (without(before, marked.before) !== without(after, marked.after)) wrong.push([before, after]);
    }
    const docstring = coloursOf('"""one\ntwo"""\nthree', "a.py").map((pieces) => pieces.map(([kind]) => kind).join());
    return { wrong, docstring, unknown: coloursOf("a", "a.unknown") };
  }, [await moduleUrl(page, "syntax.js"), await moduleUrl(page, "marks.js")]);
  assert.deepEqual(found, { wrong: [], docstring: ["string", "string", ""], unknown: null });
});

page("what is accepted, hunk by hunk, is what is copied, downloaded and written, and undone", { ...CLIPBOARD, expected: REFUSED }, async (page) => {
  const before = onDisk("hunks.py"); // with a BOM and CRLF
  await choose(page, "hunks.py");
  assert.match(await apply(page, SEVERAL), /^Merged in /);
  const boxes = page.locator("[data-choice]");
  assert.equal(await boxes.count(), 2);
  await boxes.nth(1).focus();
  await page.keyboard.press("Space");
  assert.equal(await page.getByRole("checkbox", { name: "Accept hunk 2 of 2" }).isChecked(), false);
  assert.match(await text(page, "#take-note"), /^1 of 2 hunks accepted/);
  await page.check("input[name=layout][value=split]");
  assert.ok(!(await boxes.nth(1).isChecked()), "the choice outlasts the layout");
  assert.ok((await page.locator("tr.rejected").count()) > 0);

  const expected = before.replace("LIMIT = 100", "LIMIT = 25");
  await page.click("#copy-text");
  await page.waitForFunction(() => document.getElementById("take-note").textContent === "The text is copied.");
  assert.equal((await clipboard(page)).replaceAll("\r", ""), expected.replace(/^\ufeff/, "").replaceAll("\r", ""));
  const [file] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
  assert.equal(file.suggestedFilename(), "hunks.py");
  assert.equal(fs.readFileSync(await file.path(), "utf8"), expected);
  assert.equal(onDisk("hunks.py"), before);

  const done = (beginning) => page.waitForFunction((start) => document.getElementById("status").textContent.startsWith(start), beginning);
  await page.click("#write");
  await done("Written");
  assert.equal(onDisk("hunks.py"), expected);
  await page.getByRole("button", { name: "Undo the write to hunks.py" }).click();
  await done("Undone");
  assert.equal(onDisk("hunks.py"), before);
  await page.getByRole("button", { name: "Redo the write to hunks.py" }).click();
  await done("Written again");
  assert.equal(onDisk("hunks.py"), expected);
  fs.writeFileSync(path.join(ROOT, "hunks.py"), "changed = 1\n");
  await page.getByRole("button", { name: "Undo the write to hunks.py" }).click();
  await done("Not done");
  assert.match(await text(page, "#problem"), /Not undone[^]*has changed since that write; nothing was undone/);
  assert.equal(onDisk("hunks.py"), "changed = 1\n");
});

page("hunks that break the syntax without the others are written only if it is meant", {}, async (page) => {
  const before = onDisk("halves.py");
  const block = (search, replace) => `<<<<<<< SEARCH\n${search}\n=======\n${replace}\n>>>>>>> REPLACE\n`;
  await choose(page, "halves.py");
  assert.match(await apply(page, block("first = 1", "first = [") + block("last = 2", "]")), /^Merged in /);
  await page.locator("[data-choice]").nth(1).uncheck();
  await page.click("#write");
  assert.match(await outcome(page), /^Not done: Nothing was written: with these hunks alone the file has 1 syntax errors, 0 before/);
  assert.equal(onDisk("halves.py"), before);
  await page.click("#write");
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Written"));
  assert.equal(onDisk("halves.py"), before.replace("first = 1", "first = ["));
  assert.ok(await page.locator("#problem").isHidden());
});

page("without an accepted hunk nothing can be written", {}, async (page) => {
  await choose(page, "limits.py");
  await apply(page, EDIT);
  await page.locator("[data-choice]").uncheck();
  assert.ok(await page.locator("#write").isDisabled());
  await page.locator("[data-choice]").check();
  assert.ok(await page.locator("#write").isEnabled());
});

page("hunks make every choice of lines, and never of texts that the diff does not fit", {}, async (page) => {
  const found = await page.evaluate(async (href) => {
    const { Hunks } = await import(href);
    const answerOf = (merged, diff) => ({ status: "merged", merged, files: [{ path: "x", diff }] });
    const before = "b\nc\nd\ne\nf";
    const after = "a\nb\nc\nd\nf\n";
    const diff = "--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+a\n@@ -4,2 +5 @@\n-e\n-f\n\\ No newline at end of file\n+f\n";
    const hunks = Hunks.of(answerOf(after, diff), before);
    const texts = [];
    for (const choice of [[true, true], [true, false], [false, true], [false, false]]) {
      choice.forEach((isAccepted, at) => hunks.set(at, isAccepted));
      texts.push(hunks.text);
    }
    return { texts, wrong: Hunks.of(answerOf(after, diff), `${before}g`), shifted: Hunks.of(answerOf(after, diff), `x\n${before}`) };
  }, await moduleUrl(page, "hunks.js"));
  assert.deepEqual(found.texts, ["a\nb\nc\nd\nf\n", "a\nb\nc\nd\ne\nf", "b\nc\nd\nf\n", "b\nc\nd\ne\nf"]);
  assert.equal(found.shifted, null);
});

/** Runs a copied command in a shell, as who pasted it would; gives the answer. */
function runCommand(command, environ = {}) {
  const output = execFileSync("bash", ["-c", command], { env: { PATH: process.env.PATH, ...environ }, encoding: "utf8" });
  return JSON.parse(output);
}

async function copiedCommand(page) {
  await page.click("#copy-curl");
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("The command is copied"));
  return clipboard(page);
}

page("a request is copied as a curl command that answers the same", CLIPBOARD, async (page) => {
  const strange = "it's \"$HOME\" `id` $(id) \\ !! é \u{1f600} \u2028 \u007f \u009b\nHUNK\n  'end'\n";
  await page.check("#source-paste");
  await page.fill("#name", "it's a $name.txt");
  await page.fill("#text", `${strange}last\n`);
  const edit = `<<<<<<< SEARCH\n${strange}last\n=======\n${strange}new\n>>>>>>> REPLACE\n`;
  const body = new Promise((done) => {
    page.on("response", async (response) => {
      if (response.url().endsWith("/apply")) done(await response.text());
    });
  });
  assert.match(await apply(page, edit), /^Merged in /);
  const shown = JSON.parse(/^event: result\ndata: ([^\n]*)$/m.exec(await body)[1]); // "." matches no U+2028
  const answer = runCommand(await copiedCommand(page));
  assert.equal(answer.merged, `${strange}new\n`);
  for (const name of ["status", "merged", "sha256"]) assert.deepEqual(answer[name], shown[name]);
  assert.equal(answer.files[0].diff, shown.files[0].diff);

  await choose(page, "limits.py");
  await page.fill("#edit", EDIT);
  assert.match(runCommand(await copiedCommand(page)).merged, /^LIMIT = 25$/m);
});

for (const colorScheme of ["light", "dark"]) {
  page(`every text stands out from its ground, ${colorScheme}`, { colorScheme, expected: REFUSED }, async (page) => {
    assert.deepEqual((await faintTexts(page)).faint, []);
    await choose(page, "limits.py");
    const edit = `<<<<<<< SEARCH\nWINDOW_SECONDS = 60\nLIMIT = 100\n=======\nWINDOW_SECONDS = 10  # ten\nLIMIT = 100 or None or "25"\n>>>>>>> REPLACE\n`;
    await apply(page, edit);
    await unfold(page);
    const merged = await faintTexts(page);
    assert.deepEqual(merged.faint, []);
    for (const kind of ["comment", "keyword", "string"]) assert.ok(merged.kinds.includes(`syntax ${kind} in MARK`), kind);
    await page.locator("[data-choice]").uncheck();
    assert.deepEqual((await faintTexts(page)).faint, []);
    await example(page, "The model writes");
    await page.press("#edit", "Control+Enter");
    assert.match(await outcome(page), /^Merged/);
    await unfold(page);
    assert.deepEqual((await faintTexts(page)).faint, []);
    await apply(page, "<<<<<<< SEARCH\nnowhere to be found\n=======\n1\n>>>>>>> REPLACE\n", { mode: "deterministic" });
    assert.match(await text(page, "#problem"), /./);
    assert.deepEqual((await faintTexts(page)).faint, []);
    assert.ok(merged.checked > 50);
  });
}

page("pictures", { colorScheme: "light" }, async (page) => {
  await choose(page, "limits.py");
  await apply(page, SEVERAL);
  await page.evaluate(() => document.activeElement.blur());
  await picture(page, "light");
  await page.emulateMedia({ colorScheme: "dark" });
  await page.setViewportSize({ width: 1180, height: 760 });
  await example(page, "The model writes");
  await page.keyboard.press("Enter");
  assert.match(await outcome(page), /^Merged/);
  await page.check("input[name=layout][value=split]");
  await page.click("#tokens summary");
  const lines = await page.$$eval("table.diff.split td.line", (cells) => cells.map((cell) => cell.clientWidth));
  assert.ok(Math.min(...lines) > 200, `the lines side by side are ${Math.min(...lines)} wide`);
  await page.evaluate(() => document.activeElement.blur());
  await picture(page, "dark");
});
