"""A sketch written as a lazy snippet again, with a marker for each gap in the comments of its language."""

from __future__ import annotations

from collections.abc import Sequence

from editor.types import Sketch

_WORDS = "... existing code ..."
_MARKERS = {
    "css": f"/* {_WORDS} */",
    "html": f"<!-- {_WORDS} -->",
    "markdown": f"<!-- {_WORDS} -->",
    "sql": f"-- {_WORDS}",
} | dict.fromkeys(("python", "ruby", "yaml", "toml", "bash"), f"# {_WORDS}")


def snippet(sketch: Sketch, language: str | None) -> str:
    """Return the snippet without a final newline; the markers are indented as they were sent, or as the next block."""
    marker = _MARKERS.get(language or "", f"// {_WORDS}")
    gaps = iter(sketch.marker_indents)

    def markers(block: Sequence[str]) -> list[str]:
        return [indent + marker for indent in next(gaps, (_indent(block),))]

    lines: list[str] = []
    for number, block in enumerate(sketch.blocks):
        if number or sketch.opens_elided:
            lines += markers(block)
        lines += block
    if sketch.closes_elided:
        lines += markers(sketch.blocks[-1])
    return "\n".join(lines)


def _indent(block: Sequence[str]) -> str:
    first = next((line for line in block if line.strip()), "")
    return first[: len(first) - len(first.lstrip())]
