"""Recorded diffs without the files that they are for: can they be read? (unidiff's and whatthepatch's own samples)"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from editor.errors import EditSyntaxError
from editor.formats import parse_files


def read_samples(files: Iterable[str]) -> dict[str, Any]:
    """Parse every `.diff` and `.patch` among the files as a unified diff; return how many could be read."""
    read, refused = 0, {}
    for file in (Path(name) for name in files if name.endswith((".diff", ".patch"))):
        try:
            parse_files(file.read_bytes().decode("utf-8", "replace"), "udiff")
            read += 1
        except EditSyntaxError as error:
            refused[file.name] = error.message
    return {"files": read + len(refused), "read": read, "refused": refused}
