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
    await page.waitForSelector("#service .tile", { state: "attached" });
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

/** Fills the form with an example, by its card. */
export async function example(page, title) {
  if (await page.locator("#show-examples").isVisible()) await page.click("#show-examples");
  await page.getByRole("button", { name: title }).click();
}

/** Opens all that is folded. */
export const unfold = (page) => page.$$eval("details", (all) => all.forEach((details) => (details.open = true)));

/** What a copy left in the clipboard; the page's context needs the permissions. */
export const CLIPBOARD = { permissions: ["clipboard-read", "clipboard-write"] };
export const clipboard = (page) => page.evaluate(() => navigator.clipboard.readText());

/** A module of the page, as an argument of `page.evaluate`. */
export const moduleUrl = (page, name) =>
  page.$eval("link[rel=stylesheet]", ({ href }, name) => String(new URL(name, href)), name);

/** Texts of the page whose contrast with what is behind them is less than 4.5, as `[ratio, text, colours]`. */
export async function faintTexts(page) {
  return page.evaluate(() => {
    const read = (colour) => {
      const [red, green, blue, alpha = 1] = colour.match(/[\d.]+/g).map(Number);
      return { colour: [red, green, blue], alpha };
    };
    const light = (colour) => {
      const parts = colour.map((part) => part / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
      return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const mix = (top, alpha, below) => top.map((part, at) => part * alpha + below[at] * (1 - alpha));
    const behind = (node) => {
      const layers = [];
      for (let at = node; at; at = at.parentElement) {
        const layer = read(getComputedStyle(at).backgroundColor);
        if (layer.alpha) layers.push(layer);
        if (layer.alpha === 1) break;
      }
      return layers.reverse().reduce((below, { colour, alpha }) => mix(colour, alpha, below), [255, 255, 255]);
    };
    const found = { checked: 0, kinds: [], faint: [] };
    const kinds = new Set();
    for (const node of document.querySelectorAll("body *")) {
      const isText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
      if (!isText || !node.checkVisibility() || node.closest(":disabled, .sr, .skip, option")) continue;
      const ground = behind(node);
      const { colour, alpha } = read(getComputedStyle(node).color);
      const [low, high] = [light(mix(colour, alpha, ground)), light(ground)].sort((a, b) => a - b);
      const ratio = (high + 0.05) / (low + 0.05);
      found.checked += 1;
      kinds.add(`${node.className} in ${node.closest("mark, ins, del")?.tagName ?? ""}`);
      if (ratio < 4.5) found.faint.push([ratio.toFixed(2), node.textContent.slice(0, 40), String(colour), String(ground)]);
    }
    return { ...found, kinds: [...kinds] };
  });
}

/** The rows of the unified diff that is shown: `[sign, text]`. */
export async function diffRows(page) {
  return page.$$eval("table.diff tr:not(.hunk)", (rows) =>
    rows.map((row) => [row.querySelector(".sign").textContent, row.querySelector(".line").textContent]),
  );
}
