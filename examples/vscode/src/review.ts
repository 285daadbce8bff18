// A merge under review: its hunks, what was decided on each, and the texts that follow from that.

import { changeBetween, hunksBetween, linesOf, withLineEnds, type Change, type Hunk } from "./change.js";

export type Decision = "open" | "accepted" | "rejected";

export type LineKind = "same" | "removed" | "added";

/** A hunk as it is shown: its lines [line, line + removed + added) of the shown text, the removed ones first. */
export interface ShownHunk {
  readonly line: number;
  readonly removed: number;
  readonly added: number;
  readonly decision: Decision;
}

export interface Shown {
  readonly text: string;
  readonly hunks: readonly ShownHunk[];
}

export class Review {
  readonly hunks: readonly Hunk[];
  private readonly before: readonly string[];
  private readonly merged: readonly string[];
  private decisions: readonly Decision[];
  /** Decisions by the text of the file under them, so that an undo in the file is an undo here. */
  private readonly known = new Map<string, readonly Decision[]>();

  /** `before` is the text of the file in the editor, with the line end `end`; the merged text may have others. */
  constructor(before: string, merged: string, end: string) {
    this.before = linesOf(before);
    this.merged = linesOf(withLineEnds(merged, end));
    this.hunks = hunksBetween(this.before, this.merged);
    this.decisions = this.hunks.map(() => "open");
    this.known.set(before, this.decisions);
  }

  decision(index: number): Decision {
    return this.decisions[index] ?? "rejected";
  }

  /** All decisions, as `decide` takes them. */
  get current(): readonly Decision[] {
    return this.decisions;
  }

  /** The open hunk behind another, or the first one; -1 where no other is open. */
  nextOpen(index: number): number {
    const isOpen = this.decisions.map((decision, at) => decision === "open" && at !== index);
    const behind = isOpen.indexOf(true, index);
    return behind === -1 ? isOpen.indexOf(true) : behind;
  }

  count(decision: Decision): number {
    return this.decisions.filter((each) => each === decision).length;
  }

  /** The decisions with another one on some hunks; by default on those that are open. */
  deciding(decision: Decision, index?: number): readonly Decision[] {
    return this.decisions.map((each, at) => ((index === undefined ? each === "open" : at === index) ? decision : each));
  }

  /** The text of the file: what was accepted is merged, the rest is as it was. */
  text(decisions = this.decisions): string {
    return this.pieces(decisions).join("");
  }

  /** The changes that turn the file's text into that under other decisions: one for each hunk that differs. */
  changes(decisions: readonly Decision[]): Change[] {
    const changes: Change[] = [];
    let at = 0;
    const after = this.pieces(decisions);
    this.pieces(this.decisions).forEach((piece, index) => {
      const other = after[index] ?? "";
      if (piece !== other) {
        const { start, end, text } = changeBetween(piece, other);
        changes.push({ start: at + start, end: at + end, text });
      }
      at += piece.length;
    });
    return changes;
  }

  /** Takes decisions over; the file has the text that follows from them. */
  decide(decisions: readonly Decision[]): void {
    this.decisions = decisions;
    this.known.set(this.text(), decisions);
  }

  /** Follows the file to a text that it had under this review (undo and redo). False: somebody else changed it. */
  follow(text: string): boolean {
    if (text === this.text()) return true;
    const decisions = this.known.get(text);
    if (decisions) this.decisions = decisions;
    return decisions !== undefined;
  }

  /** The whole file: of an open hunk the removed and the added lines, of a decided one what the file has. */
  show(): Shown {
    const lines: string[] = [];
    const shown: ShownHunk[] = [];
    let at = 0;
    this.hunks.forEach((hunk, index) => {
      const decision = this.decision(index);
      const removed = decision === "accepted" ? [] : this.before.slice(hunk.start, hunk.end);
      const added = decision === "rejected" ? [] : this.merged.slice(hunk.mergedStart, hunk.mergedEnd);
      lines.push(...this.before.slice(at, hunk.start));
      shown.push({ line: lines.length, removed: removed.length, added: added.length, decision });
      lines.push(...removed, ...added);
      at = hunk.end;
    });
    lines.push(...this.before.slice(at));
    return { text: lines.map((line) => line.replace(/[\r\n]+$/, "")).join("\n"), hunks: shown };
  }

  /** The text in pieces: before the first hunk, the first hunk, between, the second hunk, ..., behind the last. */
  private pieces(decisions: readonly Decision[]): string[] {
    const pieces: string[] = [];
    let at = 0;
    this.hunks.forEach((hunk, index) => {
      const lines =
        decisions[index] === "accepted"
          ? this.merged.slice(hunk.mergedStart, hunk.mergedEnd)
          : this.before.slice(hunk.start, hunk.end);
      pieces.push(this.before.slice(at, hunk.start).join(""), lines.join(""));
      at = hunk.end;
    });
    pieces.push(this.before.slice(at).join(""));
    return pieces;
  }
}
