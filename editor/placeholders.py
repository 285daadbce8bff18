"""Placeholder lines such as `// ... existing code ...`, which stand for lines that an edit leaves out.

A placeholder is a line of its own that holds nothing but a comment of one of these forms, in any comment syntax:

- bare: `// ...`, `# …`, `/* ... */`, `{/* ... */}`
- `...` first, then a word of elision: `// ... existing code ...`, `# ...rest of the file`
- a phrase of elision, then `...`: `// existing imports...`, `# rest of the function remains the same ...`
- a phrase of nothing but elision, without dots: `// existing code`, `# rest of the file unchanged.`, `# same as before`
- dots in brackets, or dots on both sides: `// [...]`, `# ... body ...`, and without a comment `... existing code ...`

A comment that merely trails off (`# wait for the other threads...`) is text. A line of `...` without a comment is a
placeholder at column 0, and `…` anywhere. Indented, `...` is a valid body in Python, so there it only counts between
braces: after a line ending in `{`, `}` or `;`, or before a line starting with `}`.

`may_be_placeholder` is wider: it also accepts comments that a file may have (`# existing logic`). If such a
comment is new and lines are removed next to it, it may stand for them (`editor/required_lines.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Possessive: a long row of dots that ends in anything else must not be split in all possible ways.
_DOTS = r"(?:\.{3,}+|…)"
_COMMENT = re.compile(
    r"\s*(?:\{\s*/\*+|/\*+|<!--|\(\*|//+|#+|--+|;+|%+|'|\*|REM\b)\s*(?P<body>\S.*?)\s*(?:\*+/\s*\}?|-->|\*\))?\s*",
    re.IGNORECASE,
)
_ELISION = (
    r"existing|rest|remaining|remainder|unchanged|same|keep|previous|other|others|original|before|above|code|"
    r"omitted|elided|unmodified|skipped|as is|as-is|leave|more|no changes?|snip|snipped|lines \d+"
)
_THINGS = (
    r"code|codes|file|files|imports?|functions?|methods?|class|classes|implementation|content|contents|lines?|"
    r"fields?|properties|props|body|logic|definitions?|declarations?|statements?|handlers?|routes?|tests?|cases?|"
    r"config|configuration|settings|options|entries|items|rules|styles|components?|jsx|markup|module|script|"
    r"constructor|variables?|members?|section|sections|parts?|document|stuff|things?|block|loop|pages?|template|layout|"
    r"table|list|text|readme|query|schema|object|array|html|css"
)
_QUALIFIERS = r"the|of|all|your|this|in|and|here|other|old|current"
_STATE = (
    r"(?:(?:is|are|remains?|stays?|kept|left|goes)\s+)*"
    r"(?:the same as before|same as before|the same|same|unchanged|as is|as-is|as before|unmodified|intact|here|above|"
    r"below|(?:omitted|elided|hidden|left out|not shown)(?: for (?:brevity|clarity))?)"
)
_BARE = re.compile(rf"{_DOTS}(?:\s*+{_DOTS})*+")
_BRACKETED = re.compile(rf"[\[(<{{]\s*{_DOTS}\s*[\])>}}]")
_BETWEEN_DOTS = re.compile(rf"[\[(<]?\s*{_DOTS}[^.…]*{_DOTS}\s*[\])>]?|[\[(<]\s*{_DOTS}\s[^.…]*[\])>]")
_LEADING = re.compile(rf"[\[(<]?\s*{_DOTS}\s*(?P<words>.*?)\s*{_DOTS}?\s*[\])>]?")
_WORD = re.compile(rf"\b(?:{_ELISION})\b", re.IGNORECASE)
_PHRASE = re.compile(
    rf"[\[(<]?\s*(?:keep\s+|leave\s+)?(?:(?:{_QUALIFIERS})\s+)*"
    rf"(?P<core>existing|rest|remaining|remainder|unchanged|same|previous|other|original|unmodified|omitted)\b"
    rf"(?P<of>\s+of\b)?(?:\s+(?:{_QUALIFIERS}|existing|\w+(?=\s+(?:{_THINGS})\b)))*"
    rf"(?P<thing>\s+(?:{_THINGS}))*(?P<state>\s+{_STATE})?\s*(?P<dots>{_DOTS})?\s*[\])>]?",
    re.IGNORECASE,
)
# Phrases that by themselves say that something is left out.
_SAYING = re.compile(
    rf"[\[(<]?\s*(?:(?:the|all|it|is|are|remains?|stays?|{_THINGS}|rest)\s+)*(?:"
    r"unchanged|(?:(?:exactly )?the )?same as (?:before|above|previously|the original|original)|"
    r"no (?:other |further |more )?changes(?: (?:here|needed|below|above|made))?|"
    rf"(?:omitted|elided|hidden|left out|not shown|truncated|abbreviated) (?:for (?:brevity|clarity)|here)|omitted|"
    rf"snip|snipped|keep (?:the |all )?existing (?:{_THINGS})"
    rf")\s*{_DOTS}?\s*[\])>]?",
    re.IGNORECASE,
)
# After code, only wording that has no other purpose.
_INLINE = re.compile(
    rf"(?://|#|/\*|<!--|--|;|%)\s*{_DOTS}\s*(?:existing|rest of|remaining|unchanged|same as|previous)\b", re.IGNORECASE
)
_FIRST_CHARS = frozenset("…./{<([#-;%'*Rr")
# Comment syntax of `_COMMENT` except for the apostrophe, which also begins a string.
_COMMENT_ALONE = re.compile(
    r"\s*(?:\{\s*/\*+|/\*+|<!--|\(\*|//+|#+|--+|;+|%+|REM\b)\s*(?P<body>\S.*?)\s*(?:\*+/\s*\}?|-->|\*\))?\s*",
    re.IGNORECASE,
)
_IN_BRACKETS = re.compile(r"\s*[\[(<](?P<body>[A-Za-z][\w ,'’-]*)[\])>]\s*")
_MAYBE = re.compile(
    r"\b(?:unchanged|untouched|intact|unmodified|same|rest|remain\w*|existing|omitted|elided|truncated|abbreviated|brevity|"
    r"snip\w*|no (?:other |further |more )?changes?|nothing changed|not (?:shown|changed|modified|touched)|"
    rf"as (?:is|before|above)|ditto)\b|(?:^|[\s(\[<]){_DOTS}(?:$|[\s)\]>])|\w{_DOTS}$",
    re.IGNORECASE,
)
# Words of a short comment that stands for more lines than are added with it.
_VAGUE = re.compile(
    r"\b(?:previous\w*|original\w*|keep|kept|leave|above|before|code|body|logic|implementation|here|etc|continue[sd]?|"
    r"skip\w*|more|others?|stays?)\b",
    re.IGNORECASE,
)
_MAX_VAGUE_WORDS = 4
# One of these words or dots is in every placeholder.
_HINT = re.compile(
    rf"{_VAGUE.pattern}|unchanged|untouched|intact|unmodified|same|rest|remain|existing|omitted|elided|truncated|abbreviated|brevity|snip|"
    r"change|not shown|as is|ditto|hidden|modified|touched",
    re.IGNORECASE,
)
_MAX_WORDS = 9
# No phrase of elision is longer, and the patterns take quadratic time on a long run of spaces.
_MAX_CHARS = 200


def find_placeholders(lines: Sequence[str]) -> frozenset[int]:
    """Return the indices of the lines that are placeholders; the lines around a bare `...` help to decide."""
    return frozenset(at for at, line in enumerate(lines) if is_placeholder(line)) | _find_bare_dots(lines)


def is_placeholder(line: str) -> bool:
    """Return whether a line by itself is a placeholder: a comment of elision, `...` at column 0, or `…`."""
    stripped = line.strip()
    if not stripped or stripped[0] not in _FIRST_CHARS or len(stripped) > _MAX_CHARS:
        return False
    if stripped == "…" or (line.startswith(".") and _BARE.fullmatch(stripped)):
        return True
    if _BETWEEN_DOTS.fullmatch(stripped) and _WORD.search(stripped):
        return True
    comment = _COMMENT.fullmatch(line)
    # ' * unchanged.' ends a sentence of a longer comment.
    return comment is not None and _is_elision(comment["body"], continued=stripped.startswith("*"))


def may_be_placeholder(line: str) -> bool:
    """Return whether a line holds nothing but a comment (or words in brackets) that may say that lines are left out."""
    if len(line) > _MAX_CHARS:
        return False
    comment = _COMMENT_ALONE.fullmatch(line) or _IN_BRACKETS.fullmatch(line)
    return is_placeholder(line) or (comment is not None and _MAYBE.search(comment["body"]) is not None)


def is_vague(line: str) -> bool:
    """Return whether a line is a short comment that may describe code or stand for some."""
    comment = _COMMENT_ALONE.fullmatch(line) if len(line) <= _MAX_CHARS else None
    if comment is None or len(comment["body"].split()) > _MAX_VAGUE_WORDS:
        return False
    return _VAGUE.search(comment["body"]) is not None


def may_hold_placeholder(text: str) -> bool:
    """Return quickly whether any line of a text may be a placeholder; never False for a text that has one."""
    return "..." in text or "…" in text or _HINT.search(text) is not None


def is_comment(line: str) -> bool:
    """Return whether a line holds nothing but a comment, in any comment syntax."""
    return len(line) <= _MAX_CHARS and _COMMENT_ALONE.fullmatch(line) is not None


def holds_placeholder(line: str) -> bool:
    """Return whether a placeholder is anywhere in a line, even after code."""
    return is_placeholder(line) or (("..." in line or "…" in line) and _INLINE.search(line) is not None)


def _is_elision(body: str, *, continued: bool) -> bool:
    if _BARE.fullmatch(body) or _BRACKETED.fullmatch(body):
        return True
    body = body.removesuffix(".") if not body.endswith("..") else body
    if len(body.split()) > _MAX_WORDS:
        return False
    if _BETWEEN_DOTS.fullmatch(body) or (not continued and _SAYING.fullmatch(body)):
        return True
    leading = _LEADING.fullmatch(body)
    if leading is not None:
        return _WORD.search(leading["words"]) is not None
    phrase = _PHRASE.fullmatch(body)
    if phrase is None or phrase["dots"] is not None:
        return phrase is not None
    # Without dots "remaining items" may well be a comment: it must say that something is left out.
    said = phrase["state"] is not None or phrase["of"] is not None or body.lower().strip("[]() ") == "existing code"
    return phrase["thing"] is not None and said


def _find_bare_dots(lines: Sequence[str]) -> frozenset[int]:
    """Return the lines of `...` between braces, blank lines aside."""
    solid = [(at, stripped) for at, line in enumerate(lines) if (stripped := line.strip())]
    around = zip(["", *(line for _, line in solid)], solid, [*(line for _, line in solid[1:]), ""], strict=False)
    return frozenset(
        at
        for above, (at, line), below in around
        if line == "..." and (above.endswith(("{", "}", ";")) or below.startswith("}"))
    )
