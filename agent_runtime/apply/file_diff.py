"""Unified diffs of whole files, as `git apply` takes them: created, deleted and renamed ones too."""

from __future__ import annotations

from editor.diff import unified_diff


def file_diff(before: str | None, after: str | None, path: str, move_to: str = "") -> str:
    """Return the diff from `before` to `after`, "" if they are equal; None stands for no file."""
    if before == after and not move_to:
        return ""
    old, new = _headers(path)[0], _headers(move_to or path)[1]
    extended = ""
    if before is None or after is None or move_to:
        extended = f"diff --git {old.removeprefix('--- ').rstrip()} {new.removeprefix('+++ ').rstrip()}\n"
    if before is None:
        extended, old = extended + "new file mode 100644\n", "--- /dev/null"
    if after is None:
        extended, new = extended + "deleted file mode 100644\n", "+++ /dev/null"
    if move_to:
        extended += f"rename from {path}\nrename to {move_to}\n"
    hunks = unified_diff(before or "", after or "", "file").split("\n", 2)[2:]
    return extended + (f"{old}\n{new}\n{hunks[0]}" if hunks else "")


def _headers(path: str) -> list[str]:
    """Return the two lines that name a file, quoted where they have to be."""
    return unified_diff("", "\n", path).split("\n")[:2]
