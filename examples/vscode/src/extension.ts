// The part that knows VS Code: commands, settings, the diff, and the edit when it is accepted.

import * as path from "node:path";
import * as vscode from "vscode";

import { changeBetween } from "./change.js";
import { apply, Unreachable } from "./client.js";
import { outcomeOf, type Outcome } from "./outcome.js";
import { applyBody, pathBelow, type Mode, type OpenFile } from "./request.js";

const TOKEN = "hunk.token";
const SCHEME = "hunk-merge";

export function activate(context: vscode.ExtensionContext): void {
  const hunk = new Hunk(context.secrets);
  context.subscriptions.push(
    hunk,
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, hunk.merges),
    vscode.commands.registerCommand("hunk.applyClipboard", () => hunk.applyClipboard()),
    vscode.commands.registerCommand("hunk.applySelection", () => hunk.applySelection()),
    vscode.commands.registerCommand("hunk.setToken", () => hunk.setToken()),
    vscode.commands.registerCommand("hunk.forgetToken", () => context.secrets.delete(TOKEN)),
  );
}

/** Merged texts as virtual documents, for the right side of a diff. */
class Merges implements vscode.TextDocumentContentProvider {
  private readonly texts = new Map<string, string>();
  private count = 0;

  add(file: vscode.Uri, text: string): vscode.Uri {
    this.count += 1;
    const uri = vscode.Uri.from({ scheme: SCHEME, path: file.path, query: String(this.count) });
    this.texts.set(uri.toString(), text);
    return uri;
  }

  forget(uri: vscode.Uri): void {
    this.texts.delete(uri.toString());
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.toString()) ?? "";
  }
}

class Hunk implements vscode.Disposable {
  readonly merges = new Merges();
  private readonly log = vscode.window.createOutputChannel("Hunk");

  constructor(private readonly secrets: vscode.SecretStorage) {}

  dispose(): void {
    this.log.dispose();
  }

  async applyClipboard(): Promise<void> {
    const document = vscode.window.activeTextEditor?.document;
    if (!document) return this.fail("Open the file that the edit is for.");
    await this.applyTo(document, await vscode.env.clipboard.readText());
  }

  async applySelection(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    const edit = editor?.document.getText(editor.selection) ?? "";
    if (!editor || !edit) return this.fail("Select the edit first.");
    const others = vscode.workspace.textDocuments.filter(
      (document) => document !== editor.document && ["file", "untitled"].includes(document.uri.scheme),
    );
    const picked = await vscode.window.showQuickPick(
      others.map((document) => ({ label: vscode.workspace.asRelativePath(document.uri), document })),
      { title: "Hunk: the file that the selected edit is for", placeHolder: others.length ? "" : "No other file is open" },
    );
    if (picked) await this.applyTo(picked.document, edit);
  }

  async setToken(): Promise<void> {
    const token = await vscode.window.showInputBox({ title: "Hunk: token of the service", password: true });
    if (token) await this.secrets.store(TOKEN, token.trim());
  }

  private async applyTo(document: vscode.TextDocument, edit: string): Promise<void> {
    const { version } = document;
    let outcome: Outcome;
    try {
      const asked = await this.ask(document, edit);
      if (asked === null) return;
      outcome = asked;
    } catch (error) {
      return this.fail(error instanceof Error ? error.message : String(error));
    }
    switch (outcome.kind) {
      case "noop":
        await vscode.window.showInformationMessage(`Hunk: ${outcome.message}`);
        return;
      case "refused":
        return this.fail(outcome.message, outcome.details);
      case "rejected": {
        const shown = await this.show(document, outcome.text, "rejected");
        await this.fail(outcome.message, outcome.details);
        this.merges.forget(shown);
        return;
      }
      case "merged": {
        const shown = await this.show(document, outcome.text, "merged");
        const answer = await vscode.window.showInformationMessage(`Hunk: merged ${outcome.how}.`, "Accept", "Discard");
        await closeTab(shown);
        this.merges.forget(shown);
        if (answer === "Accept") await this.accept(document, version, outcome.text);
      }
    }
  }

  /** The outcome; null where the user has cancelled. */
  private async ask(document: vscode.TextDocument, edit: string): Promise<Outcome | null> {
    const settings = vscode.workspace.getConfiguration("hunk", document.uri);
    const workspace = settings.get("workspace", "");
    const file = await openFile(document, workspace !== "");
    const body = applyBody(file, edit, settings.get<Mode>("mode", "auto"), workspace);
    const service = {
      url: settings.get("url", ""),
      token: (await this.secrets.get(TOKEN)) ?? "",
      timeoutMs: settings.get("timeoutSeconds", 300) * 1000,
    };
    const progress = {
      location: vscode.ProgressLocation.Notification,
      title: `Hunk: applying an edit to ${file.path}`,
      cancellable: true,
    };
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

  private async show(document: vscode.TextDocument, text: string, what: string): Promise<vscode.Uri> {
    const merged = this.merges.add(document.uri, text);
    const title = `${path.basename(document.uri.path)}: ${what} by Hunk`;
    await vscode.commands.executeCommand("vscode.diff", document.uri, merged, title, { preview: true });
    return merged;
  }

  /** Change the document, if it is still the one that the edit was merged into. */
  private async accept(document: vscode.TextDocument, version: number, text: string): Promise<void> {
    if (document.isClosed || document.version !== version) {
      return this.fail("The file was changed meanwhile; nothing was accepted. Apply the edit again.");
    }
    const change = changeBetween(document.getText(), text);
    const range = new vscode.Range(document.positionAt(change.start), document.positionAt(change.end));
    const edit = new vscode.WorkspaceEdit();
    edit.replace(document.uri, range, change.text);
    if (!(await vscode.workspace.applyEdit(edit))) return this.fail("VS Code did not take the change.");
    await vscode.window.showTextDocument(document, { selection: new vscode.Range(range.start, range.start) });
  }

  private async fail(message: string, details = ""): Promise<void> {
    if (details) this.log.appendLine(`${message}\n${details}\n`);
    const answers = details ? ["Show why", "Copy for the model"] : [];
    const answer = await vscode.window.showErrorMessage(`Hunk: ${message}`, ...answers);
    if (answer === "Show why") this.log.show();
    if (answer === "Copy for the model") await vscode.env.clipboard.writeText(details);
  }
}

/** A document as the service is told of it; its saved bytes only where they are asked for and are what is shown. */
async function openFile(document: vscode.TextDocument, wantsSaved: boolean): Promise<OpenFile> {
  const folder = vscode.workspace.getWorkspaceFolder(document.uri);
  const below = folder ? pathBelow(folder.uri.fsPath, document.uri.fsPath, path.sep) : null;
  const isSaved = wantsSaved && below !== null && !document.isDirty && document.uri.scheme === "file";
  return {
    text: document.getText(),
    path: below ?? path.basename(document.uri.path),
    saved: isSaved ? await vscode.workspace.fs.readFile(document.uri) : null,
  };
}

async function closeTab(merged: vscode.Uri): Promise<void> {
  const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs);
  const found = tabs.filter(
    ({ input }) => input instanceof vscode.TabInputTextDiff && input.modified.toString() === merged.toString(),
  );
  await vscode.window.tabGroups.close(found);
}
