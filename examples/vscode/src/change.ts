// Texts as lines, and the stretches in which two texts differ.

import { diffArrays } from "diff";

/** Replace [start, end) of the text before, in UTF-16 units, by `text`. */
export interface Change {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

/** Lines [start, end) of the text before become lines [mergedStart, mergedEnd) of the merged text. */
export interface Hunk {
  readonly start: number;
  readonly end: number;
  readonly mergedStart: number;
  readonly mergedEnd: number;
}

const MAX_DIFF_MS = 2000;

/** The lines of a text, each with its line end. Joined they are the text. */
export function linesOf(text: string): string[] {
  return text.match(/[^\r\n]*(\r\n|\r|\n)|[^\r\n]+$/g) ?? [];
}

/** A text with one kind of line end, as an editor holds it. */
export function withLineEnds(text: string, end: string): string {
  return text.replace(/\r\n|\r|\n/g, end);
}

/**
 * The hunks between two texts, in order. Changes with only blank lines between them are one hunk. All is one hunk
 * where comparing takes too long.
 */
export function hunksBetween(before: readonly string[], merged: readonly string[]): Hunk[] {
  const parts = diffArrays([...before], [...merged], { timeout: MAX_DIFF_MS });
  if (!parts) return [{ start: 0, end: before.length, mergedStart: 0, mergedEnd: merged.length }];
  const hunks: Hunk[] = [];
  let [at, mergedAt] = [0, 0];
  for (const { added, removed, value } of parts) {
    const [end, mergedEnd] = [at + (added ? 0 : value.length), mergedAt + (removed ? 0 : value.length)];
    const last = hunks.at(-1);
    if (added || removed) {
      const joins = last && before.slice(last.end, at).every((line) => !line.trim());
      if (joins) hunks[hunks.length - 1] = { ...last, end, mergedEnd };
      else hunks.push({ start: at, end, mergedStart: mergedAt, mergedEnd });
    }
    [at, mergedAt] = [end, mergedEnd];
  }
  return hunks;
}

/** The smallest single change that makes `after` of `before`; it parts no character and no line end. */
export function changeBetween(before: string, after: string): Change {
  const most = Math.min(before.length, after.length);
  let start = 0;
  while (start < most && before[start] === after[start]) start += 1;
  while (start > 0 && (isParted(before, start) || isParted(after, start))) start -= 1;
  let behind = 0;
  while (behind < most - start && before[before.length - 1 - behind] === after[after.length - 1 - behind]) behind += 1;
  while (behind > 0 && (isParted(before, before.length - behind) || isParted(after, after.length - behind))) behind -= 1;
  return { start, end: before.length - behind, text: after.slice(start, after.length - behind) };
}

/** Whether a place lies within a surrogate pair or between "\r" and "\n". */
function isParted(text: string, place: number): boolean {
  const [left, right] = [text.charCodeAt(place - 1), text.charCodeAt(place)];
  return (left === 13 && right === 10) || (left >= 0xd800 && left < 0xdc00 && right >= 0xdc00 && right < 0xe000);
}
