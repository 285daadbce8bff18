"""Renders an alignment as text: rows, indentation and blank lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import NamedTuple

from editor.attribution.snippet import measure_indent
from editor.attribution.statements import IMPORT
from editor.reader.candidates import FileLines, Snippet
from editor.reader.costs import Path


class Row(NamedTuple):
    """One line of a result: its text, the line of the file that it is, the item that shows it (None: neither)."""

    text: str
    line: int | None
    item: int | None

    @property
    def closes(self) -> bool:
        """Return whether the line closes a block."""
        return self.text.lstrip()[:1] in (")", "]", "}") or self.text.strip() == "end"


Run = Sequence[Row]
"""Consecutive rows of a result: all shown by the snippet, or all unshown lines of the file that stay."""


def build_runs(
    file: FileLines, snippet: Snippet, path: Path, gone: frozenset[int] = frozenset(), *, by_hunk: bool = False
) -> list[Run]:
    """Return the lines of a result that are not blank; `gone` are skipped lines that go all the same.

    Shown lines side by side move as far as most of them, or, `by_hunk`, as far as most lines of their fence.
    """
    runs: list[Run] = []
    block: list[tuple[int | None, int]] = []
    unshown = _list_file_rows(file)

    def close_block() -> None:
        if block:
            runs.append(_render_block(file, snippet, block, by_hunk=by_hunk))
            block.clear()

    for step in path.steps:
        if step.kind in ("skip", "mark"):
            close_block()
            start = step.line
            for at in (*sorted(gone.intersection(range(step.line, step.line_end))), step.line_end):
                if start < at:
                    runs.append(unshown[start:at])
                start = at + 1
        elif step.kind == "match":
            block.append((step.line, step.item))
        elif step.kind == "sub":
            block.append((-1 - step.line, step.item))
        elif step.kind in ("insert", "rewrite"):
            block.append((None if step.kind == "insert" else -1 - step.line, step.item))
            block += ((None, item) for item in range(step.item + 1, step.item_end))
    close_block()
    return runs


@lru_cache(maxsize=2)
def _list_file_rows(file: FileLines) -> list[Row]:
    return [Row(line, at, None) for at, line in enumerate(file.lines)]


def has_own_shift(snippet: Snippet, runs: Sequence[Run]) -> bool:
    """Return whether a shown line is shifted by other columns than most lines of its fence."""
    return any(
        row.item is not None
        and measure_indent(row.text) != snippet.compute_width(row.item)
        and snippet.items[row.item].elided is None
        for run in runs
        for row in (run if run[0].item is not None else ())
    )


def _render_block(
    file: FileLines, snippet: Snippet, block: Sequence[tuple[int | None, int]], *, by_hunk: bool
) -> list[Row]:
    """Return the rows of consecutive shown lines, all shifted by the same columns.

    The outermost lines tell how far: an edit that wraps or unwraps code shows the inner ones at another depth.
    """
    hunk_number = snippet.items[block[0][1]].hunk
    hunk = snippet.shifts.get(hunk_number, 0)
    shift = hunk if by_hunk else _find_shift(file, snippet, block, hunk)
    rows: list[Row] = []
    for line, item in block:
        shown = snippet.items[item]
        kept = line if line is not None and line >= 0 else None
        width = max(0, snippet.columns[item] + shift)
        if kept is not None and (shown.elided is not None or file.widths[kept] == width):
            rows.append(Row(file.lines[kept], kept, item))
            continue
        sign = shown.line[:1]
        other = (sign == "\t") != file.uses_tabs and sign.isspace() and (hunk_number, sign) not in snippet.verbatim
        text = _indent(shown.key, width, tabs=file.uses_tabs) if shift or other else shown.line
        rows.append(Row(text.rstrip() if not shown.line.endswith("  ") else text, kept, item))
    return rows


def _find_shift(file: FileLines, snippet: Snippet, block: Sequence[tuple[int | None, int]], hunk: int) -> int:
    """Return the columns by which the outermost lines of a block are shifted in the file."""
    shifts: Counter[int] = Counter()
    outermost = min((snippet.items[item].width for line, item in block if line is not None), default=0)
    for line, item in block:
        if line is not None and snippet.items[item].width == outermost:
            at = line if line >= 0 else -1 - line
            shifts[file.widths[at] - snippet.columns[item]] += 2 if line >= 0 else 1
    return hunk if not shifts or hunk in shifts else shifts.most_common(1)[0][0]


def _indent(key: str, width: int, *, tabs: bool) -> str:
    return ("\t" * (width // 4) + " " * (width % 4) if tabs else " " * width) + key


def render_text(file: FileLines, snippet: Snippet, runs: Sequence[Run], *, as_shown: bool = False) -> str:
    """Return the whole text with its blank lines: the file's, or between shown lines that stay the snippet's own."""
    out: list[str] = []
    above: Row | None = None
    for run in runs:
        if run[0].item is None:
            out += _find_blanks(file, snippet, above, run[0], as_shown=as_shown)
            out.append(file.text[file.starts[run[0].line or 0] : file.ends[run[-1].line or 0]])
            above = run[-1]
            continue
        for row in run:
            out += _find_blanks(file, snippet, above, row, as_shown=as_shown)
            out.append(row.text)
            above = row
    if above is not None and above.line == len(file) - 1:
        out += file.tail
    return "\n".join(out) + ("\n" if file.final_newline and out else "")


def _find_blanks(file: FileLines, snippet: Snippet, above: Row | None, row: Row, *, as_shown: bool) -> Sequence[str]:
    """Return the blank lines between two rows of a result."""
    if above is None:
        return file.above[0] if row.line == 0 else ()
    shown = snippet.items[row.item] if row.item is not None else None
    near = shown is not None and above.item is not None and row.item == above.item + 1
    if row.line is not None and above.line is not None and row.line == above.line + 1:
        own = file.above[row.line]
        return [""] * shown.blanks if shown is not None and near and as_shown and shown.blanks != len(own) else own
    if shown is not None and near:
        if shown.blanks:
            beside = [
                file.above[at] for at in _list_blank_sources(file, above, row) if len(file.above[at]) == shown.blanks
            ]
            return beside[0] if beside else [""] * shown.blanks
        heads = row.line is not None and above.line is None and row.line > 0 and bool(file.names[row.line])
        return file.above[row.line] if heads and row.line is not None and above.closes else ()
    if row.line is not None:
        return _find_blanks_above_kept(file, snippet, above, row.line)
    return _find_blanks_above_new(file, snippet, above, row)


def _list_blank_sources(file: FileLines, above: Row, row: Row) -> list[int]:
    """Return the lines of the file whose blank lines above a change may be those between two rows of a result."""
    found = [row.line] if row.line is not None else []
    return found + ([above.line + 1] if above.line is not None and above.line + 1 < len(file) else [])


def _find_blanks_above_kept(file: FileLines, snippet: Snippet, above: Row, line: int) -> Sequence[str]:
    """Return the blank lines above a line of the file after a gap or a change."""
    own = file.above[line]
    if above.line is not None:
        gone = file.above[above.line + 1] if line > above.line else []
        return own if len(own) >= len(gone) else gone
    after = (above.item if above.item is not None else len(snippet)) + 1
    is_head = above.closes and bool(file.names[line])
    if not own and is_head and after < len(snippet) and snippet.items[after].kind == "marker":
        return [""] * snippet.items[after].blanks
    return own


def _find_blanks_above_new(file: FileLines, snippet: Snippet, above: Row, row: Row) -> Sequence[str]:
    """Return the blank lines above a new line after a gap."""
    assert row.item is not None
    shown = snippet.items[row.item]
    if above.line is None:
        return [""] * shown.blanks
    if IMPORT.match(row.text) and IMPORT.match(above.text):
        return ()
    own = file.above[above.line + 1] if above.line + 1 < len(file) else []
    is_head = above.closes and bool(snippet.names[row.item])
    if not own and is_head and row.item and snippet.items[row.item - 1].kind == "marker":
        begins_fence = row.item < 2 or snippet.items[row.item - 2].hunk != shown.hunk
        return [""] * (file.blanks_between if begins_fence else shown.blanks)
    return own


def find_moved_lines(file: FileLines, snippet: Snippet, path: Path, kept: Set[int]) -> frozenset[int]:
    """Return the `kept` lines, those that a path skips, that the snippet shows at a new place: they may have moved."""
    new = {snippet.items[step.item].key for step in path.steps if step.kind == "insert"}
    names = {
        snippet.names[step.item]
        for step in path.steps
        if step.kind in ("insert", "sub") and snippet.names[step.item] and snippet.items[step.item].blanks
    }
    found: set[int] = set()
    for first, end, name in file.definitions:
        body = range(first, end)
        is_kept = name in names and len(body) > 2 and all(at in kept for at in body)
        if is_kept and sum(file.keys[at] in new for at in body) > 0.4 * len(body):
            found.update(body)
    for key in new:
        places = file.places.get(key, ())
        if len(places) == 1 and places[0] in kept and (IMPORT.match(key) or len(key) > 15):
            found.add(places[0])
    return frozenset(found)
