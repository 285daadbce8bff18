"""Names a file that was sent without a name by the language that it is written in, so that checks can parse it."""

from __future__ import annotations

import re

from editor.languages import language_of
from editor.syntax import survey

MAX_CHARACTERS = 200_000
"""Longer texts are not looked at: a grammar takes milliseconds a thousand lines."""

_SIGNS = [
    (re.compile(sign, re.MULTILINE), suffixes)
    for sign, suffixes in [
        (r"^<\?php", ("php",)),
        (r"^package \w+\s*$", ("go",)),
        (r"^\s*(async def|def|class) .*:\s*(#.*)?$", ("py",)),
        (r"^\s*(pub(\(\w+\))? )?(const |async |unsafe )*fn \w+", ("rs",)),
        (r"^\s*#\s*(include|ifndef|pragma)\b", ("cpp",)),
        (r"^\s*(using [\w.]+;|namespace [\w.]+)", ("cs",)),
        (r"^\s*(package|import( static)?) [\w.]+(\.\*)?;", ("java",)),
        (r"^\s*(import\b.*['\"];?|export |const |let |var |(async )?function\b)", ("ts", "tsx")),
        (r"^\s*end\s*$", ("rb",)),
    ]
]
"""What tells a language, the surest first, and the suffixes of the grammars that then have to prove it."""


def name_of(code: str) -> str:
    """`file` with a suffix, where the text shows a language whose grammar reads it without an error; else "".

    A definition has to be found, too: a grammar that finds none proves little. JavaScript counts as TypeScript, which
    holds it. Without a name it is as if there were no grammar for the text.
    """
    if len(code) > MAX_CHARACTERS:
        return ""
    suffixes = next((suffixes for sign, suffixes in _SIGNS if sign.search(code)), ())
    return next((name for suffix in suffixes if _is_read(name := f"file.{suffix}", code)), "")


def _is_read(name: str, code: str) -> bool:
    found = survey(code, language_of(name))
    return found is not None and not found.error_lines and bool(found.symbols)
