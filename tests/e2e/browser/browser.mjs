// One Chromium for all tests; every page of it is held to what the page promises: no error, no other host.

import assert from "node:assert/strict";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const { MODULES, CHROMIUM, SCREENSHOTS } = process.env;
const require = createRequire(path.join(MODULES, "package.json"));
const { chromium } = require("playwright-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const ARGUMENTS = [
  "--no-sandbox", // CI runs as root
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

const PATIENCE = 60_000;

export const launch = () => chromium.launch({ executablePath: CHROMIUM, args: ARGUMENTS });

/** Runs a test on a page of its own; `expected` are patterns of console errors that belong to the test. */
export async function onPage(browser, url, options, test) {
  const { expected = [], ...context } = options;
  const own = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...context });
  own.setDefaultTimeout(PATIENCE);
  const page = await own.newPage();
  const faults = [];
  const hosts = new Set();
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") faults.push(message.text());
  });
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("dialog", (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => hosts.add(new URL(request.url()).host));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective}`));
  });
  try {
    await page.goto(url);
    await page.waitForSelector("#service .tile");
    await page.waitForSelector("#paths option, #access:not([hidden])", { state: "attached" });
    await test(page);
    assert.deepEqual([...hosts], [new URL(url).host], "the page asked another host");
    assert.deepEqual(
      faults.filter((fault) => !expected.some((pattern) => pattern.test(fault))),
      [],
      "the console tells of faults",
    );
  } catch (error) {
    await page.screenshot({ path: path.join(SCREENSHOTS, "failed.png"), fullPage: true });
    throw error;
  } finally {
    await own.close();
  }
}

/** Keeps a picture of the page. */
export async function picture(page, name, options = {}) {
  await page.screenshot({ path: path.join(SCREENSHOTS, `page-${name}.png`), ...options });
}

/** What axe-core holds against the page that is serious or worse, as text. */
export async function seriousFaults(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document));
  return violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" | ")}`);
}

export const text = (page, selector) => page.locator(selector).innerText();

/** Waits until an edit has come to something, and gives what the status says. */
export async function outcome(page) {
  await page.waitForFunction(
    () => !document.querySelector("[aria-busy]") && !document.getElementById("apply").disabled,
  );
  return text(page, "#status");
}

/** Chooses a file of the workspace, and waits until its text is there. */
export async function choose(page, file) {
  await page.check("#source-workspace");
  await page.selectOption("#paths", file);
  await page.waitForFunction((name) => document.getElementById("file-note").textContent.startsWith(name), file);
}

/** Sets the options of an edit, and applies it by the keyboard. */
export async function apply(page, edit, options = {}) {
  for (const [name, value] of Object.entries(options)) {
    await page.$eval("details.options", (details) => (details.open = true));
    await page.selectOption(`#${name}`, value);
  }
  await page.fill("#edit", edit);
  await page.press("#edit", "Control+Enter");
  return outcome(page);
}

/** The rows of the unified diff that is shown: `[sign, text]`. */
export async function diffRows(page) {
  return page.$$eval("table.diff tr:not(.hunk)", (rows) =>
    rows.map((row) => [row.querySelector(".sign").textContent, row.querySelector(".line").textContent]),
  );
}
