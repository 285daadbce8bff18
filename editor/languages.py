"""Which language a file is written in, told by the suffix of its path."""

from __future__ import annotations

from pathlib import PurePosixPath

# Headers count as C++: its grammar reads nearly all C, while C's reads no classes.
_SUFFIXES = {
    "python": (".py", ".pyi", ".pyw"),
    "javascript": (".js", ".jsx", ".mjs", ".cjs"),
    "typescript": (".ts", ".mts", ".cts"),
    "tsx": (".tsx",),
    "go": (".go",),
    "rust": (".rs",),
    "java": (".java",),
    "c": (".c",),
    "cpp": (".cc", ".cpp", ".cxx", ".c++", ".h", ".hh", ".hpp", ".hxx", ".h++", ".ipp"),
    "json": (".json",),
}
_LANGUAGE_OF = {suffix: language for language, suffixes in _SUFFIXES.items() for suffix in suffixes}


def language_of(path: str) -> str | None:
    """Return the language of a path ("python", "tsx", ...), or None where no grammar is at hand."""
    return _LANGUAGE_OF.get(PurePosixPath(path.replace("\\", "/")).suffix.lower())
