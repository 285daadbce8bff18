"""Where the blocks of an update end: at the lines that say "... existing code ...", and at its own end."""

from __future__ import annotations

from collections.abc import Sequence

from engine.speculation.token_lines import TokenLines

SIGNS = (b"...", "…".encode(), b"unchanged", b"existing", b"remains")
"""What a line says that stands for code left out, if the original does not have this line."""


def block_ends(update: Sequence[int], original: Sequence[int], lines: TokenLines) -> list[tuple[int, int]]:
    """Tokens [start, end) of the update that are not copied, in order; the last such range ends with the update.

    A range begins with the token before: the last one of a block may end its line otherwise than the file does, where
    a blank line follows.
    """
    known: frozenset[bytes] | None = None
    ends: list[tuple[int, int]] = []
    start, line = 0, b""
    for place, token_id in enumerate(update, start=1):
        kind = lines.kind(token_id)
        line += kind.data
        if kind.ends_line or place == len(update):
            if any(sign in line for sign in SIGNS):
                known = known or frozenset(line.strip() for line in lines.text(original).split(b"\n"))
                if line.strip() not in known:
                    ends.append((max(0, start - 1), place))
            start, line = place, b""
    return [*ends, (max(0, len(update) - 1), len(update))]
