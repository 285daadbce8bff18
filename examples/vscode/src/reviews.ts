// Shows a merge as a text of its own with a lens on each hunk, and changes the file by what is accepted.

import * as vscode from "vscode";

import type { Merged } from "./outcome.js";
import { Review, type Decision, type Shown } from "./review.js";

export const REVIEW = "hunk-review";
export const MERGE = "hunk-merge";

/** A merge of an edit into a file. It is stale while the file has a text that the review did not make. */
interface Entry {
  readonly uri: vscode.Uri;
  readonly file: vscode.Uri;
  readonly edit: string;
  readonly merged: Merged;
  readonly review: Review;
  isStale: boolean;
  /** The hunk that the cursor goes to once its text is shown. */
  goal: number | null;
}

/** Texts of the service as virtual documents, for the right side of a diff. */
export class Merges implements vscode.TextDocumentContentProvider {
  private readonly texts = new Map<string, string>();
  private count = 0;

  async show(file: vscode.Uri, text: string, what: string): Promise<void> {
    this.count += 1;
    const uri = vscode.Uri.from({ scheme: MERGE, path: file.path, query: String(this.count) });
    this.texts.set(uri.toString(), text);
    await vscode.commands.executeCommand("vscode.diff", file, uri, `${nameOf(file)}: ${what} by Hunk`);
  }

  forget(uri: vscode.Uri): void {
    this.texts.delete(uri.toString());
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.toString()) ?? "";
  }
}

export class Reviews implements vscode.TextDocumentContentProvider, vscode.CodeLensProvider, vscode.Disposable {
  private readonly entries = new Map<string, Entry>();
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  private readonly lensesChanged = new vscode.EventEmitter<void>();
  private readonly status = vscode.window.createStatusBarItem(vscode.StatusBarAlignment.Left, 100);
  private readonly looks = {
    removed: decoration("diffEditor.removedLineBackground", "−"),
    added: decoration("diffEditor.insertedLineBackground", "+"),
    decided: decoration("editor.lineHighlightBackground", "✓"),
  };
  private readonly subscriptions: vscode.Disposable[];
  private queue: Promise<unknown> = Promise.resolve();
  private count = 0;

  readonly onDidChange = this.changed.event;
  readonly onDidChangeCodeLenses = this.lensesChanged.event;

  /** `applyAgain` asks the service once more, about the file as it is by then. */
  constructor(
    private readonly merges: Merges,
    private readonly applyAgain: (document: vscode.TextDocument, edit: string) => Promise<void>,
  ) {
    const on = (name: string, run: (entry: Entry, index?: number) => Promise<unknown>) =>
      vscode.commands.registerCommand(`hunk.${name}`, (uri?: unknown, index?: number) => {
        const entry = this.entryOf(uri);
        if (entry) return (this.queue = this.queue.then(() => run(entry, index)).catch(fail));
        return undefined;
      });
    this.subscriptions = [
      this.changed,
      this.lensesChanged,
      this.status,
      ...Object.values(this.looks),
      vscode.workspace.registerTextDocumentContentProvider(REVIEW, this),
      vscode.languages.registerCodeLensProvider({ scheme: REVIEW }, this),
      vscode.workspace.onDidCloseTextDocument(({ uri }) => merges.forget(uri)),
      vscode.workspace.onDidChangeTextDocument(({ document }) => this.onText(document)),
      vscode.window.onDidChangeVisibleTextEditors(() => this.decorate()),
      vscode.window.onDidChangeActiveTextEditor(() => this.showStatus()),
      vscode.window.tabGroups.onDidChangeTabs(({ closed }) => this.forget(closed)),
      on("acceptHunk", (entry, index) => this.decideOne(entry, "accepted", index)),
      on("rejectHunk", (entry, index) => this.decideOne(entry, "rejected", index)),
      on("takeBack", (entry, index) => this.decideOne(entry, "open", index)),
      on("acceptAll", (entry) => this.decideAll(entry, "accepted")),
      on("rejectAll", (entry) => this.decideAll(entry, "rejected")),
      on("nextHunk", async (entry) => this.go(entry, 1)),
      on("previousHunk", async (entry) => this.go(entry, -1)),
      on("undoDecision", (entry) => this.undo(entry)),
      on("sideBySide", (entry) => this.merges.show(entry.file, entry.merged.text, "merged")),
      on("applyAgain", (entry) => this.again(entry)),
    ];
  }

  dispose(): void {
    for (const each of this.subscriptions) each.dispose();
  }

  /** Opens the review of a merge into a document, whose text is the one that the service was given. */
  async open(document: vscode.TextDocument, edit: string, merged: Merged): Promise<void> {
    const end = document.eol === vscode.EndOfLine.CRLF ? "\r\n" : "\n";
    const review = new Review(document.getText(), merged.text, end);
    if (!review.hunks.length) {
      await vscode.window.showInformationMessage("Hunk: the merge differs in line ends only, which VS Code sets itself.");
      return;
    }
    this.count += 1;
    const path = document.uri.path.replace(/[^/]*$/, (name) => `Hunk: ${name}`);
    const uri = vscode.Uri.from({ scheme: REVIEW, path, query: String(this.count) });
    const entry: Entry = { uri, file: document.uri, edit, merged, review, isStale: false, goal: 0 };
    this.entries.set(uri.toString(), entry);
    const text = await vscode.workspace.openTextDocument(uri);
    await vscode.languages.setTextDocumentLanguage(text, document.languageId);
    await vscode.window.showTextDocument(text, { preview: false });
    this.refresh(entry);
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.entries.get(uri.toString())?.review.show().text ?? "This review is over: apply the edit again.\n";
  }

  provideCodeLenses(document: vscode.TextDocument): vscode.CodeLens[] {
    const entry = this.entries.get(document.uri.toString());
    if (!entry) return [];
    const lens = (line: number, title: string, command = "", ...more: unknown[]) => {
      const at = Math.min(line, document.lineCount - 1);
      const call = { title, command: command && `hunk.${command}`, arguments: [entry.uri, ...more] };
      return new vscode.CodeLens(new vscode.Range(at, 0, at, 0), call);
    };
    if (entry.isStale) {
      return [lens(0, "$(warning)\u00a0The file was changed meanwhile"), lens(0, "Apply the edit again", "applyAgain")];
    }
    const { hunks } = entry.review.show();
    const all = hunks.some(({ decision }) => decision === "open")
      ? [lens(0, "Accept all", "acceptAll"), lens(0, "Reject all", "rejectAll")]
      : [];
    const { how, isCertain, warnings } = entry.merged;
    return [
      lens(0, `${isCertain ? "$(info)" : "$(warning)"}\u00a0${how}`),
      ...warnings.map((warning) => lens(0, `$(warning)\u00a0${warning}`)),
      ...all,
      lens(0, "Side by side", "sideBySide"),
      ...hunks.flatMap(({ line, decision }, index) =>
        decision === "open"
          ? [lens(line, "$(check)\u00a0Accept", "acceptHunk", index), lens(line, "$(close)\u00a0Reject", "rejectHunk", index)]
          : [
              lens(line, decision === "accepted" ? "$(check)\u00a0Accepted" : "$(close)\u00a0Rejected"),
              lens(line, "Take back", "takeBack", index),
            ],
      ),
    ];
  }

  private entryOf(uri: unknown): Entry | undefined {
    const at = uri instanceof vscode.Uri ? uri : vscode.window.activeTextEditor?.document.uri;
    return at && this.entries.get(at.toString());
  }

  private editorOf(entry: Entry): vscode.TextEditor | undefined {
    return vscode.window.visibleTextEditors.find(({ document }) => document.uri.toString() === entry.uri.toString());
  }

  /**
   * Decides on a hunk: the one that is named, or else the one at the cursor or behind it that is open. A lens may be
   * older than the last decision: only an open hunk is accepted or rejected, only a decided one is taken back.
   */
  private async decideOne(entry: Entry, decision: Decision, named?: number): Promise<void> {
    const { review } = entry;
    const line = this.editorOf(entry)?.selection.active.line ?? 0;
    const index = typeof named === "number" ? named : hunkAt(review.show(), line);
    if (index === -1 || (review.decision(index) === "open") === (decision === "open")) return;
    entry.goal = decision === "open" ? index : review.nextOpen(index);
    await this.decide(entry, review.deciding(decision, index));
  }

  private async decideAll(entry: Entry, decision: Decision): Promise<void> {
    if (!(await this.decide(entry, entry.review.deciding(decision)))) return;
    await closeTab(entry.uri);
    await vscode.window.showTextDocument(entry.file);
  }

  /** Changes the file as the decisions say, in one step of undo; false, and nothing changed, if it cannot be. */
  private async decide(entry: Entry, decisions: readonly Decision[]): Promise<boolean> {
    const { review } = entry;
    const document = await vscode.workspace.openTextDocument(entry.file);
    entry.isStale = !review.follow(document.getText());
    if (entry.isStale) {
      this.refresh(entry);
      const what = "Hunk: the file was changed meanwhile, and stays as it is.";
      void vscode.window.showWarningMessage(what, "Apply the edit again").then((answer) => {
        if (answer) void this.again(entry).catch(fail);
      });
      return false;
    }
    const edit = new vscode.WorkspaceEdit();
    for (const { start, end, text } of review.changes(decisions)) {
      edit.replace(entry.file, new vscode.Range(document.positionAt(start), document.positionAt(end)), text);
    }
    const before = review.current;
    review.decide(decisions); // first, so that the change that follows is known to be ours
    if (edit.size && !(await vscode.workspace.applyEdit(edit))) {
      review.decide(before);
      this.refresh(entry);
      throw new Error("VS Code did not take the change; the file stays as it is.");
    }
    this.refresh(entry);
    return true;
  }

  /** Undoes the last accept. The undo is the editor's, so the file is in front meanwhile; any other change is redone. */
  private async undo(entry: Entry): Promise<void> {
    const { review } = entry;
    const before = review.current;
    const { document } = await vscode.window.showTextDocument(entry.file);
    await vscode.commands.executeCommand("undo");
    const isOurs = review.follow(document.getText());
    if (!isOurs) await vscode.commands.executeCommand("redo");
    entry.isStale = !review.follow(document.getText());
    entry.goal = before.findIndex((decision, index) => decision !== review.decision(index));
    await vscode.window.showTextDocument(entry.uri, { preview: false });
    this.refresh(entry);
    if (!isOurs) vscode.window.setStatusBarMessage("Hunk: nothing was accepted that could be undone", 5000);
  }

  private async again(entry: Entry): Promise<void> {
    const document = await vscode.workspace.openTextDocument(entry.file);
    await closeTab(entry.uri);
    await this.applyAgain(document, entry.edit);
  }

  /** The cursor to the next open hunk, or the previous one. */
  private go(entry: Entry, step: -1 | 1): void {
    const line = this.editorOf(entry)?.selection.active.line ?? 0;
    const { hunks } = entry.review.show();
    const open = [...hunks.keys()].filter((index) => hunks[index]?.decision === "open");
    const lineOf = (index: number) => hunks[index]?.line ?? 0;
    const next = open.find((index) => lineOf(index) > line) ?? open[0];
    const previous = open.findLast((index) => lineOf(index) < line) ?? open.at(-1);
    entry.goal = (step === 1 ? next : previous) ?? null;
    this.decorate();
  }

  private onText(document: vscode.TextDocument): void {
    if (document.uri.scheme === REVIEW) return this.decorate();
    for (const entry of this.entries.values()) {
      if (entry.file.toString() !== document.uri.toString()) continue;
      entry.isStale = !entry.review.follow(document.getText());
      this.refresh(entry);
    }
  }

  private refresh(entry: Entry): void {
    this.changed.fire(entry.uri);
    this.lensesChanged.fire();
    this.decorate();
    this.showStatus();
  }

  private decorate(): void {
    for (const entry of this.entries.values()) {
      const editor = this.editorOf(entry);
      const shown = entry.review.show();
      if (!editor || editor.document.getText() !== shown.text) continue; // the new text is on its way
      const found = { removed: [] as vscode.Range[], added: [] as vscode.Range[], decided: [] as vscode.Range[] };
      for (const { line, removed, added, decision } of shown.hunks) {
        const isOpen = decision === "open";
        if (isOpen && removed) found.removed.push(lines(line, removed));
        if (added) found[isOpen ? "added" : "decided"].push(lines(line + removed, added));
      }
      for (const look of ["removed", "added", "decided"] as const) editor.setDecorations(this.looks[look], found[look]);
      const goal = entry.goal === null ? undefined : shown.hunks[entry.goal];
      entry.goal = null;
      if (!goal) continue;
      editor.selection = new vscode.Selection(goal.line, 0, goal.line, 0);
      editor.revealRange(editor.selection, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    }
  }

  private showStatus(): void {
    const entry = this.entryOf(undefined);
    if (!entry) return this.status.hide();
    const { review, merged } = entry;
    const state = entry.isStale ? "the file was changed meanwhile" : `${review.count("open")} of ${review.hunks.length} hunks open`;
    this.status.text = `$(git-compare) Hunk: ${state}`;
    this.status.tooltip = [merged.how, ...merged.warnings].join("\n");
    this.status.show();
  }

  private forget(closed: readonly vscode.Tab[]): void {
    for (const { input } of closed) if (input instanceof vscode.TabInputText) this.entries.delete(input.uri.toString());
    this.showStatus();
  }
}

/** The hunk that is open at a line, or the next one behind it, or the first; -1 where none is open. */
function hunkAt({ hunks }: Shown, line: number): number {
  const isOpen = hunks.map(({ decision }) => decision === "open");
  const behind = hunks.findIndex((hunk, at) => isOpen[at] && hunk.line + Math.max(1, hunk.removed + hunk.added) > line);
  return behind === -1 ? isOpen.indexOf(true) : behind;
}

function lines(first: number, count: number): vscode.Range {
  return new vscode.Range(first, 0, first + count - 1, 0);
}

/** A look of whole lines, with a sign in the margin for those who do not see the colour. */
function decoration(background: string, sign: string): vscode.TextEditorDecorationType {
  const text = `<text x="8" y="12" text-anchor="middle" font-family="monospace" font-size="13" fill="#888">${sign}</text>`;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" width="16" height="16">${text}</svg>`;
  return vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: new vscode.ThemeColor(background),
    gutterIconPath: vscode.Uri.parse(`data:image/svg+xml;utf8,${encodeURIComponent(svg)}`),
    gutterIconSize: "contain",
  });
}

async function closeTab(uri: vscode.Uri): Promise<void> {
  const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs);
  const found = tabs.filter(({ input }) => input instanceof vscode.TabInputText && input.uri.toString() === uri.toString());
  await vscode.window.tabGroups.close(found);
}

function nameOf(file: vscode.Uri): string {
  return file.path.slice(file.path.lastIndexOf("/") + 1);
}

async function fail(error: unknown): Promise<void> {
  await vscode.window.showErrorMessage(`Hunk: ${error instanceof Error ? error.message : String(error)}`);
}
