"""Placeholder lines such as `// ... existing code ...`: what stands for lines that an edit leaves out.

A placeholder is a line of its own that holds nothing but a comment of one of these forms, in any comment syntax:

- bare: `// ...`, `# …`, `/* ... */`, `{/* ... */}`
- `...` first, then a word of elision: `// ... existing code ...`, `# ...rest of the file`
- a phrase of elision, then `...`: `// existing imports...`, `# rest of the function remains the same ...`
- a phrase that says nothing else, without dots: `// existing code`, `# rest of the file unchanged`

A comment that merely trails off (`# wait for the other threads...`) is text. A line of `...` without a comment is a
placeholder at column 0, and `…` anywhere. Indented, `...` is a valid body in Python, so there it only counts between
braces: behind a line ending in `{`, `}` or `;`, or before a line starting with `}`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Possessive: a long row of dots that ends in anything else must not be parted in every way there is.
_DOTS = r"(?:\.{3,}+|…)"
_COMMENT = re.compile(
    r"\s*(?:\{\s*/\*+|/\*+|<!--|\(\*|//+|#+|--+|;+|%+|'|\*|REM\b)\s*(?P<body>\S.*?)\s*(?:\*+/\s*\}?|-->|\*\))?\s*",
    re.IGNORECASE,
)
_ELISION = (
    r"existing|rest|remaining|remainder|unchanged|same|keep|previous|other|others|original|before|above|code|"
    r"omitted|elided|unmodified|skipped|as is|as-is|leave|more"
)
_THINGS = (
    r"code|codes|file|files|imports?|functions?|methods?|class|classes|implementation|content|contents|lines?|"
    r"fields?|properties|props|body|logic|definitions?|declarations?|statements?|handlers?|routes?|tests?|cases?|"
    r"config|configuration|settings|options|entries|items|rules|styles|components?|jsx|markup|module|script|"
    r"constructor|variables?|members?|section|sections|parts?|document|stuff|things?|block|loop"
)
_QUALIFIERS = r"the|of|all|your|this|in|and|here|other|old|current"
_STATE = (
    r"(?:(?:is|are|remains?|stays?|kept|left|goes)\s+)*"
    r"(?:the same as before|the same|same|unchanged|as is|as-is|as before|unmodified|intact|here|omitted|above|below)"
)
_BARE = re.compile(rf"{_DOTS}(?:\s*+{_DOTS})*+")
_LEADING = re.compile(rf"[\[(<]?\s*{_DOTS}\s*(?P<words>.*?)\s*{_DOTS}?\s*[\])>]?")
_WORD = re.compile(rf"\b(?:{_ELISION})\b", re.IGNORECASE)
_PHRASE = re.compile(
    rf"[\[(<]?\s*(?:keep\s+|leave\s+)?(?:(?:{_QUALIFIERS})\s+)*"
    rf"(?P<core>existing|rest|remaining|remainder|unchanged|same|previous|other|original|unmodified|omitted)\b"
    rf"(?P<of>\s+of\b)?(?:\s+(?:{_QUALIFIERS}|existing|\w+(?=\s+(?:{_THINGS})\b)))*"
    rf"(?P<thing>\s+(?:{_THINGS}))*(?P<state>\s+{_STATE})?\s*(?P<dots>{_DOTS})?\s*[\])>]?",
    re.IGNORECASE,
)
# Behind code, only wording that no one writes for any other purpose.
_INLINE = re.compile(
    rf"(?://|#|/\*|<!--|--|;|%)\s*{_DOTS}\s*(?:existing|rest of|remaining|unchanged|same as|previous)\b", re.IGNORECASE
)
_FIRST_CHARS = frozenset("…./{<(#-;%'*Rr")
_MAX_WORDS = 9
# No phrase of elision is longer, and the patterns take quadratic time on a long run of spaces.
_MAX_CHARS = 200


def placeholder_lines(lines: Sequence[str]) -> frozenset[int]:
    """Return the indices of the lines that are placeholders; the lines around a bare `...` help to tell."""
    return frozenset(at for at, line in enumerate(lines) if is_placeholder(line)) | _bare_dots(lines)


def is_placeholder(line: str) -> bool:
    """Tell whether a line by itself is a placeholder: a comment of elision, `...` at column 0, or `…`."""
    stripped = line.strip()
    if not stripped or stripped[0] not in _FIRST_CHARS or len(stripped) > _MAX_CHARS:
        return False
    if stripped == "…" or (line.startswith(".") and _BARE.fullmatch(stripped)):
        return True
    comment = _COMMENT.fullmatch(line)
    return comment is not None and _is_elision(comment["body"])


def holds_placeholder(line: str) -> bool:
    """Tell whether a placeholder stands anywhere in a line, behind code too."""
    return is_placeholder(line) or (("..." in line or "…" in line) and _INLINE.search(line) is not None)


def _is_elision(body: str) -> bool:
    if _BARE.fullmatch(body):
        return True
    if len(body.split()) > _MAX_WORDS:
        return False
    leading = _LEADING.fullmatch(body)
    if leading is not None:
        return _WORD.search(leading["words"]) is not None
    phrase = _PHRASE.fullmatch(body)
    if phrase is None or phrase["dots"] is not None:
        return phrase is not None
    # Without dots "remaining items" may well be a comment: it has to say that something is left out.
    said = phrase["state"] is not None or phrase["of"] is not None or body.lower().strip("[]() ") == "existing code"
    return phrase["thing"] is not None and said


def _bare_dots(lines: Sequence[str]) -> frozenset[int]:
    """Return the lines of `...` between braces; blank lines do not part them from the braces."""
    solid = [(at, stripped) for at, line in enumerate(lines) if (stripped := line.strip())]
    around = zip(["", *(line for _, line in solid)], solid, [*(line for _, line in solid[1:]), ""], strict=False)
    return frozenset(
        at
        for above, (at, line), below in around
        if line == "..." and (above.endswith(("{", "}", ";")) or below.startswith("}"))
    )
