// The one stretch in which two texts differ, so that accepting a merge leaves cursors and folds elsewhere alone.

/** Replace [start, end) of the text before, in UTF-16 units, by `text`. */
export interface Change {
  readonly start: number;
  readonly end: number;
  readonly text: string;
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
