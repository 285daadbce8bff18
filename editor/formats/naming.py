"""Lines that name the file of an edit: `src/x.py`, `**src/x.py**:`, "```python src/x.py", `# File: src/x.py`."""

from __future__ import annotations

import re

_FENCE_INFO = re.compile(r"(?:`{3,}|~{3,})\s*(?:[\w+#-]+[\s:]+)?(?P<name>[^\s`]+)\s*")
_LABEL = re.compile(r"^(?:file(?:name| ?path)?|path)\s*:\s*", re.IGNORECASE)
# One path: no blanks, and a dot with an extension, a slash, or one of the names that have neither.
_PATH = re.compile(r"(?:[\w.@+~()\[\]$-]+[/\\])*(?:[\w.@+~()\[\]$-]*\.[A-Za-z_][\w-]*|[\w@+~()\[\]$-]+)")
_BARE_NAMES = frozenset({"Makefile", "Dockerfile", "LICENSE", "README", "Procfile", "Gemfile", "Rakefile"})


def file_name(line: str) -> str:
    """Return the path that a line names, '' if it names none."""
    fence = _FENCE_INFO.fullmatch(line.strip())
    if fence is not None:
        return _path(fence["name"])
    text = line.strip().removeprefix("//").lstrip("# ").strip().removeprefix("**").removesuffix("**")
    text = _LABEL.sub("", text.strip().rstrip(":").strip("*").strip())
    return _path(text.strip("`\"'").rstrip(":").strip())


def _path(text: str) -> str:
    if not _PATH.fullmatch(text) or text.startswith("...") or text.endswith("."):
        return ""
    has_form = "/" in text or "\\" in text or "." in text.strip(".") or text.startswith(".")
    return text if has_form or text in _BARE_NAMES else ""
