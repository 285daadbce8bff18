// Commands and settings: what is asked of the service for a document, and what its answer leads to.

import * as vscode from "vscode";

import { apply, NoService, Unreachable, type Service } from "./client.js";
import { outcomeOf, type Outcome } from "./outcome.js";
import { applyBody, pathBelow, type ApplyBody, type Mode, type OpenFile } from "./request.js";
import { MERGE, Merges, REVIEW, Reviews } from "./reviews.js";

const SERVE = "hunk serve --root .";

export function activate(context: vscode.ExtensionContext): void {
  const hunk = new Hunk(context.secrets);
  context.subscriptions.push(
    hunk,
    vscode.workspace.registerTextDocumentContentProvider(MERGE, hunk.merges),
    vscode.commands.registerCommand("hunk.applyClipboard", () => hunk.applyClipboard()),
    vscode.commands.registerCommand("hunk.applySelection", () => hunk.applySelection()),
    vscode.commands.registerCommand("hunk.setAddress", () => hunk.setAddress()),
    vscode.commands.registerCommand("hunk.setToken", () => hunk.setToken()),
    vscode.commands.registerCommand("hunk.forgetToken", () => hunk.forgetToken()),
  );
}

class Hunk implements vscode.Disposable {
  readonly merges = new Merges();
  private readonly reviews = new Reviews(this.merges, (document, edit) => this.applyTo(document, edit));
  private readonly log = vscode.window.createOutputChannel("Hunk");

  constructor(private readonly secrets: vscode.SecretStorage) {}

  dispose(): void {
    this.reviews.dispose();
    this.log.dispose();
  }

  async applyClipboard(): Promise<void> {
    const document = vscode.window.activeTextEditor?.document;
    if (!document || !isFile(document)) return this.fail("Open the file that the edit is for.");
    await this.applyTo(document, await vscode.env.clipboard.readText());
  }

  async applySelection(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    const edit = editor?.document.getText(editor.selection) ?? "";
    if (!editor || !edit) return this.fail("Select the edit first.");
    const others = vscode.workspace.textDocuments.filter((document) => document !== editor.document && isFile(document));
    const picked = await vscode.window.showQuickPick(
      others.map((document) => ({ label: vscode.workspace.asRelativePath(document.uri), document })),
      { title: "Hunk: the file that the selected edit is for", placeHolder: others.length ? "" : "No other file is open" },
    );
    if (picked) await this.applyTo(picked.document, edit);
  }

  /** Asks for the service's address; false where the user gives none. */
  async setAddress(): Promise<boolean> {
    const url = await vscode.window.showInputBox({ title: "Hunk: address of the service", value: address() });
    if (!url?.trim()) return false;
    await vscode.workspace.getConfiguration("hunk").update("url", url.trim(), vscode.ConfigurationTarget.Global);
    vscode.window.setStatusBarMessage(`Hunk: the service is ${address()}`, 5000);
    return true;
  }

  /** Asks for the token of the service at this address; false where the user gives none. */
  async setToken(prompt = ""): Promise<boolean> {
    const title = `Hunk: token of the service at ${address()}`;
    const token = await vscode.window.showInputBox({ title, prompt, password: true, ignoreFocusOut: true });
    if (!token?.trim()) return false;
    await this.secrets.store(tokenKey(), token.trim());
    return true;
  }

  async forgetToken(): Promise<void> {
    await this.secrets.delete(tokenKey());
  }

  private async applyTo(document: vscode.TextDocument, edit: string): Promise<void> {
    let outcome: Outcome | null;
    const text = document.getText();
    try {
      outcome = await this.ask(document, edit);
    } catch (error) {
      return this.fail(error instanceof Error ? error.message : String(error));
    }
    switch (outcome?.kind) {
      case "noop":
        await vscode.window.showInformationMessage(`Hunk: ${outcome.message}`);
        return;
      case "refused":
        return this.fail(outcome.message, outcome.details);
      case "rejected":
        await this.merges.show(document.uri, outcome.text, "rejected");
        return this.fail(outcome.message, outcome.details);
      case "merged":
        if (document.getText() !== text) return this.fail("The file was changed meanwhile: apply the edit again.");
        await this.reviews.open(document, edit, outcome);
    }
  }

  /** The outcome; null where the user has given up. Asks for a token, or where the service is, until it is known. */
  private async ask(document: vscode.TextDocument, edit: string): Promise<Outcome | null> {
    const settings = vscode.workspace.getConfiguration("hunk", document.uri);
    const workspace = settings.get("workspace", "");
    const body = await applyBody(await openFile(document, workspace !== ""), edit, settings.get<Mode>("mode", "auto"), workspace);
    for (;;) {
      const token = (await this.secrets.get(tokenKey())) ?? "";
      try {
        const outcome = await this.send({ url: address(), token, timeoutMs: settings.get("timeoutSeconds", 300) * 1000 }, body);
        if (outcome?.kind !== "refused" || !outcome.wantsToken) return outcome;
        const prompt = token ? "It does not know the token that it was sent." : "It asks for one (`hunk token new`).";
        if (!(await this.setToken(prompt))) return outcome;
      } catch (error) {
        if (!(error instanceof NoService)) throw error;
        if (!(await this.findService(error.message))) return null;
      }
    }
  }

  private async send(service: Service, body: ApplyBody): Promise<Outcome | null> {
    const location = vscode.ProgressLocation.Notification;
    const progress = { location, title: `Hunk: applying an edit to ${body.path}`, cancellable: true };
    return vscode.window.withProgress(progress, async (_, cancellation) => {
      const cancelled = new AbortController();
      cancellation.onCancellationRequested(() => cancelled.abort());
      try {
        return outcomeOf(await apply(service, body, cancelled.signal));
      } catch (error) {
        if (cancelled.signal.aborted && !(error instanceof Unreachable)) return null;
        throw error;
      }
    });
  }

  /** Says what to do where no service answers; true if it is to be asked again. */
  private async findService(message: string): Promise<boolean> {
    const advice = `Type in a terminal: ${SERVE} (rules only: ${SERVE} --model none)`;
    const answers = ["Try again", "Set the address", "Copy the command"] as const;
    const answer = await vscode.window.showErrorMessage(`Hunk: ${message} ${advice}`, ...answers);
    if (answer === "Copy the command") await vscode.env.clipboard.writeText(SERVE);
    return answer === "Try again" || (answer === "Set the address" && (await this.setAddress()));
  }

  private async fail(message: string, details = ""): Promise<void> {
    if (details) this.log.appendLine(`${message}\n${details}\n`);
    const answers = details ? ["Show why", "Copy the reasons for the model"] : [];
    const answer = await vscode.window.showErrorMessage(`Hunk: ${message}`, ...answers);
    if (answer === "Show why") this.log.show();
    if (answer === "Copy the reasons for the model") await vscode.env.clipboard.writeText(`${message}\n\n${details}`);
  }
}

function address(): string {
  return vscode.workspace.getConfiguration("hunk").get("url", "");
}

/** Each address has its own token, so that none is sent to another service. */
function tokenKey(): string {
  return `hunk.token ${address()}`;
}

/** Whether a document is a file, saved or not, and none that only shows something. */
function isFile({ uri }: vscode.TextDocument): boolean {
  if ([REVIEW, MERGE].includes(uri.scheme)) return false;
  return uri.scheme === "untitled" || vscode.workspace.fs.isWritableFileSystem(uri.scheme) === true;
}

/** A document as the service is told of it; its saved bytes only where they are asked for and are what is shown. */
async function openFile(document: vscode.TextDocument, wantsSaved: boolean): Promise<OpenFile> {
  const folder = vscode.workspace.getWorkspaceFolder(document.uri);
  const below = folder ? pathBelow(folder.uri.path, document.uri.path) : null;
  const isSaved = wantsSaved && below !== null && !document.isDirty && document.uri.scheme === "file";
  return {
    text: document.getText(),
    path: below ?? document.uri.path.slice(document.uri.path.lastIndexOf("/") + 1),
    saved: isSaved ? await vscode.workspace.fs.readFile(document.uri) : null,
  };
}
