// The extension in VS Code's own workbench, as a user drives it: keyboard, palette, lenses; what counts is on the disk.

import assert from "node:assert/strict";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { after, before, test } from "node:test";

const { CHROMIUM, FAILURES, MODULES, PICTURE, ROOT, SETTINGS, TOKEN, WORKBENCH } = process.env;
const { URL_OF_NOBODY, URL_OPEN, URL_WITH_TOKEN } = process.env;
const { chromium } = createRequire(path.join(MODULES, "package.json"))("playwright-core");

const FILE = `"""Limits of a client, in requests a minute."""

LIMIT = 100
BURST = 20


def allowed(seen: int) -> bool:
    return seen < LIMIT


def wait(seen: int) -> float:
    return 0.0 if allowed(seen) else 60.0
`;

const block = (search, replace) => `<<<<<<< SEARCH\n${search}\n=======\n${replace}\n>>>>>>> REPLACE\n`;

const EDIT = [
  block("LIMIT = 100", "LIMIT = 1000"),
  block("    return seen < LIMIT", "    return seen < LIMIT + BURST"),
  block("    return 0.0 if allowed(seen) else 60.0", "    return 0.0 if allowed(seen) else 30.0"),
].join("");

let browser;
let context;

before(async () => {
  browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
  context = await browser.newContext({ viewport: { width: 1100, height: 640 } });
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: WORKBENCH });
  context.setDefaultTimeout(30_000);
  fs.writeFileSync(path.join(ROOT, "chat.txt"), EDIT); // the explorer may overlook what is made while it starts
});

after(() => browser?.close());

/** A test with a file of its own, which is open in the workbench; the user has more settings from then on. */
function inWorkbench(title, name, work, settings = {}) {
  test(title, { timeout: 180_000 }, async () => {
    fs.writeFileSync(path.join(ROOT, name), FILE);
    fs.writeFileSync(SETTINGS, JSON.stringify({ ...JSON.parse(fs.readFileSync(SETTINGS, "utf8")), ...settings }));
    const page = await context.newPage();
    try {
      await page.goto(`${WORKBENCH}/?folder=${ROOT}`);
      await open(page, name);
      await work(page, () => fs.readFileSync(path.join(ROOT, name), "utf8"));
    } catch (error) {
      await page.screenshot({ path: path.join(FAILURES, `failed-${name}.png`) });
      throw error;
    } finally {
      await page.close();
    }
  });
}

async function open(page, name) {
  await page.locator(`.explorer-folders-view .monaco-list-row[aria-label^="${name}"]`).dblclick();
  await page.locator(`.tab.active[data-resource-name="${name}"]`).waitFor();
}

/** Sets the text of an input. Typed text would go into the file if the palette closed just then. */
function setValue(input, text) {
  input.value = text;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Runs a command by the palette, which may close and not know the extension while the workbench starts. */
async function run(page, command) {
  const input = page.locator(".quick-input-widget input");
  const found = page.locator(".quick-input-list .monaco-list-row.focused", { hasText: command });
  const hasRun = async () => {
    if (!(await input.isVisible())) await page.keyboard.press("F1");
    await input.evaluate(setValue, `>${command}`, { timeout: 1000 });
    await found.click({ timeout: 2000 });
    return true;
  };
  for (let tries = 0; !(await hasRun().catch(() => false)); tries++) {
    assert.ok(tries < 15, `there is no command ${command}`);
    await page.keyboard.press("Escape");
  }
}

async function applyClipboard(page, edit) {
  await page.evaluate((text) => navigator.clipboard.writeText(text), edit);
  await run(page, "Hunk: Apply clipboard edit to this file");
}

/** Types into the box that the extension has opened. */
async function answer(page, title, text) {
  await page.locator(".quick-input-widget", { hasText: title }).waitFor();
  await page.locator(".quick-input-widget input").fill(text);
  await page.keyboard.press("Enter");
}

const setAddress = async (page, url) => {
  await run(page, "Hunk: Set the service's address");
  await answer(page, "address of the service", url);
  await page.locator(".statusbar-item", { hasText: `the service is ${url}` }).waitFor();
};

const message = (page, text) => page.locator(".notification-toast", { hasText: text });
const lens = (page, text) => page.locator(".codelens-decoration a", { hasText: new RegExp(`${text}$`) });
const fact = (page, text) => page.locator(".codelens-decoration", { hasText: text });
const openHunks = (page, text) => page.locator(".statusbar-item", { hasText: `Hunk: ${text} hunks open` }).waitFor();

async function save(page, name) {
  await page.locator(`.tab[data-resource-name="${name}"]`).click();
  await page.keyboard.press("Control+s");
  await page.locator(`.tab.active:not(.dirty)[data-resource-name="${name}"]`).waitFor();
}

inWorkbench("who finds no service is told what to type, sets the address, and accepts and rejects by hunk", "limits.py", async (page, onDisk) => {
  await setAddress(page, URL_OF_NOBODY);
  await applyClipboard(page, EDIT);
  await message(page, "hunk serve --root .").waitFor();
  await message(page, URL_OF_NOBODY).getByRole("button", { name: "Set the address" }).click();
  await answer(page, "address of the service", URL_OPEN);

  await openHunks(page, "3 of 3");
  await fact(page, /certain: by a rule \(exact\)/).waitFor();
  assert.equal(await lens(page, "Accept").count(), 3);
  await lens(page, "Accept").first().dblclick();
  await fact(page, "Accepted").waitFor();
  await openHunks(page, "2 of 3");
  await lens(page, "Reject").first().click();
  await fact(page, "Rejected").waitFor();
  await openHunks(page, "1 of 3");
  await page.mouse.move(0, 0);
  await page.screenshot({ path: PICTURE });
  assert.equal(onDisk(), FILE, "the user has not saved");
  await save(page, "limits.py");
  assert.equal(onDisk(), FILE.replace("LIMIT = 100", "LIMIT = 1000"));
});

inWorkbench("by the keyboard alone: accept, reject, undo in one step, accept the rest", "keys.py", async (page, onDisk) => {
  await setAddress(page, URL_OPEN);
  await applyClipboard(page, EDIT);
  await openHunks(page, "3 of 3");
  await page.keyboard.press("Control+Enter");
  await openHunks(page, "2 of 3");
  await page.keyboard.press("Control+Enter");
  await openHunks(page, "1 of 3");
  await page.keyboard.press("Control+z");
  await openHunks(page, "2 of 3");
  await page.locator(".statusbar-item", { hasText: "Ln 8," }).waitFor(); // where the second hunk is again
  await page.keyboard.press("Control+Backspace");
  await openHunks(page, "1 of 3");
  await page.keyboard.press("Control+Shift+Enter");
  await page.locator('.tab.active[data-resource-name="keys.py"]').waitFor();
  assert.equal(await page.locator(".tab", { hasText: "Hunk: keys.py" }).count(), 0, "the review is closed");
  await save(page, "keys.py");
  assert.equal(onDisk(), FILE.replace("LIMIT = 100", "LIMIT = 1000").replace("60.0", "30.0"));
});

inWorkbench("a file that is changed meanwhile stays as it is, and the edit is applied again", "meanwhile.py", async (page, onDisk) => {
  await setAddress(page, URL_OPEN);
  await applyClipboard(page, EDIT);
  await openHunks(page, "3 of 3");
  await page.locator('.tab[data-resource-name="meanwhile.py"]').click();
  await page.keyboard.press("Control+Home");
  await page.keyboard.type("# mine\n");
  await page.locator(".tab", { hasText: "Hunk: meanwhile.py" }).click();
  await fact(page, "The file was changed meanwhile").waitFor();
  assert.equal(await lens(page, "Accept").count(), 0);
  await page.keyboard.press("Control+Enter");
  await message(page, "stays as it is").waitFor();
  await lens(page, "Apply the edit again").click();
  await openHunks(page, "3 of 3");
  await page.keyboard.press("Control+z");
  await page.locator(".statusbar-item", { hasText: "nothing was accepted that could be undone" }).waitFor();
  await openHunks(page, "3 of 3");
  await page.keyboard.press("Control+Shift+Enter");
  await page.locator('.tab.active[data-resource-name="meanwhile.py"]').waitFor();
  await save(page, "meanwhile.py");
  const merged = FILE.replace("LIMIT = 100", "LIMIT = 1000").replace("< LIMIT", "< LIMIT + BURST").replace("60.0", "30.0");
  assert.equal(onDisk(), `# mine\n${merged}`);
});

inWorkbench("a selected edit goes to another open file, and what was decided is taken back", "selected.py", async (page, onDisk) => {
  await setAddress(page, URL_OPEN);
  await open(page, "chat.txt");
  await page.locator(".view-line").first().click();
  await page.keyboard.press("Control+a");
  await run(page, "Hunk: Apply selected text as edit to another open file");
  await page.locator(".quick-input-list .monaco-list-row", { hasText: "selected.py" }).click();
  await openHunks(page, "3 of 3");
  await lens(page, "Accept").nth(1).click();
  await fact(page, "Accepted").waitFor();
  await lens(page, "Reject").first().click();
  await fact(page, "Rejected").waitFor();
  await openHunks(page, "1 of 3");
  await lens(page, "Take back").nth(1).click();
  await fact(page, "Accepted").waitFor({ state: "detached" });
  await openHunks(page, "2 of 3");
  await page.keyboard.press("Control+Shift+Enter");
  await page.locator('.tab.active[data-resource-name="selected.py"]').waitFor();
  await save(page, "selected.py");
  assert.equal(onDisk(), FILE.replace("< LIMIT", "< LIMIT + BURST").replace("60.0", "30.0"));
});

inWorkbench("a refusal tells why, and its reasons are copied for the model", "refused.py", async (page, onDisk) => {
  await setAddress(page, URL_OPEN);
  await applyClipboard(page, block("LIMITS = 100", "LIMITS = 1000"));
  await message(page, "Hunk:").getByRole("button", { name: "Copy the reasons for the model" }).click();
  let copied = "";
  for (let tries = 0; !copied.includes("Send instead") && tries < 100; tries++) {
    await page.waitForTimeout(100);
    copied = await page.evaluate(() => navigator.clipboard.readText());
  }
  assert.match(copied, /LIMIT = 100/);
  assert.match(copied, /Send instead/);
  assert.equal(onDisk(), FILE);
});

inWorkbench("a service that wants a token is given one, once", "token.py", async (page) => {
  await setAddress(page, URL_WITH_TOKEN);
  await applyClipboard(page, EDIT);
  await answer(page, "token of the service", "wrong");
  await page.locator(".quick-input-widget", { hasText: "does not know the token" }).waitFor();
  await answer(page, "token of the service", TOKEN);
  await openHunks(page, "3 of 3");
  await page.keyboard.press("Control+Shift+Backspace");
  await page.locator('.tab.active:not(.dirty)[data-resource-name="token.py"]').waitFor();
  await applyClipboard(page, EDIT);
  await openHunks(page, "3 of 3");
});

inWorkbench("in the browser it asks a service at the workbench's own address, and no other", "web.py", async (page, onDisk) => {
  const asked = [];
  page.on("request", (request) => asked.push(request.url()));
  await setAddress(page, URL_OPEN);
  await applyClipboard(page, EDIT);
  const proxy = `${WORKBENCH}/proxy/${new URL(URL_OPEN).port}`; // code-server hands this to the port
  await message(page, "in a browser").getByRole("button", { name: "Set the address" }).click();
  await answer(page, "address of the service", proxy);
  await openHunks(page, "3 of 3");
  assert.ok(asked.includes(`${proxy}/apply`), "the browser itself has asked");
  await page.keyboard.press("Control+Enter");
  await openHunks(page, "2 of 3");
  await page.keyboard.press("Control+Shift+Backspace");
  await page.locator('.tab.active[data-resource-name="web.py"]').waitFor();
  await save(page, "web.py");
  assert.equal(onDisk(), FILE.replace("LIMIT = 100", "LIMIT = 1000"));
}, { "remote.extensionKind": { "hunk.hunk-vscode": ["web"] } });
