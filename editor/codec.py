r"""Bytes of a file to text with "\n" lines, and a merged text back to bytes that keep what was not edited.

UTF-8 only. A line ends at "\r\n" or "\n"; a lone "\r" ends a line only in a file without any "\n" (classic Mac OS), and
is a character like any other elsewhere (a progress bar in a fixture). Form feed, vertical tab, NEL, U+2028 and U+2029
never end a line: `str.splitlines` would break files at them.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from editor.alignment import LineOp, line_opcodes
from editor.errors import BinaryFileError, NotEncodableError, NotUtf8Error

BOM = "\ufeff"
_SPLIT = re.compile(r"(\r\n|\n)")
_SPLIT_MAC = re.compile(r"(\r)")
# UTF-32 first: its little-endian mark begins with that of UTF-16.
_OTHER_BOMS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True, slots=True)
class SourceText:
    r"""A decoded file: `text` with "\n" lines, and what is needed to give its bytes back.

    `line_endings` has one entry a line: "\n", "\r\n", "\r", or "" for a last line without an ending.
    """

    text: str
    bom: bool
    line_endings: tuple[str, ...]

    @property
    def dominant_ending(self) -> str:
        r"""Return the most frequent line ending, "\n" for a file without one."""
        counts = Counter(ending for ending in self.line_endings if ending)
        return counts.most_common(1)[0][0] if counts else "\n"


def decode(data: bytes) -> SourceText:
    """Return the text of a file; raises `BinaryFileError` or `NotUtf8Error`."""
    for mark, name in _OTHER_BOMS:
        if data.startswith(mark):
            raise NotUtf8Error(f"The file is {name} (its byte order mark says so); save it as UTF-8 and try again.")
    nul = data.find(0)
    if nul >= 0:
        raise BinaryFileError(f"The file is binary (a NUL byte at offset {nul}); only text files can be edited.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise NotUtf8Error(f"The file is not valid UTF-8 ({where}); save it as UTF-8 and try again.") from error
    bom = text.startswith(BOM)
    lines, endings = _split(text[bom:])
    joined = "".join(line + "\n" if ending else line for line, ending in zip(lines, endings, strict=True))
    return SourceText(joined, bom, endings)


def encode(text: str, source: SourceText, *, undo_nfc: bool = True) -> bytes:
    """Return the bytes to write for a merged text; see `restore`."""
    try:
        return restore(text, source, undo_nfc=undo_nfc).encode("utf-8")
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(error.object[error.start]):04X}"
        raise NotEncodableError(f"The merged text holds a lone surrogate ({surrogate}), which is not text.") from error


def restore(merged: str, source: SourceText, *, undo_nfc: bool = True) -> str:
    r"""Give a merged "\n" text the file's BOM, line endings and spelling, byte for byte where nothing was edited.

    A line that came unchanged from the original gets its own ending, and the final newline stays as it was if the last
    line did. A new line takes the ending of the line that it replaces, else of the line before it. With `undo_nfc` a
    line that differs from the original's only by Unicode normalisation counts as unchanged: Qwen's tokenizer composes
    characters (NFC), so a model cannot copy "e" + U+0301. Set it False for a text that no tokenizer has seen.
    """
    new = merged.split("\n")
    final_newline = new[-1] == ""
    if final_newline:
        new.pop()
    old = source.text.split("\n")[: len(source.line_endings)]
    parts = _restored_lines(old, new, source, final_newline, undo_nfc)
    bom = BOM if source.bom and (source.text.startswith(BOM) or not merged.startswith(BOM)) else ""
    return bom + "".join(parts)


def _restored_lines(
    old: list[str], new: list[str], source: SourceText, final_newline: bool, undo_nfc: bool
) -> list[str]:
    endings = source.line_endings
    spelling, chosen = list(new), [""] * len(new)
    fallback = source.dominant_ending
    last_kept = False
    for op in line_opcodes(_keys(old, undo_nfc), _keys(new, undo_nfc)):
        for at in range(op.b_start, op.b_end):
            twin = op.a_start + at - op.b_start
            if op.equal:
                spelling[at] = old[twin]
            chosen[at] = _ending(op, twin, endings, chosen[at - 1] if at else "") or fallback
        last_kept = op.equal and op.a_end == len(old) and op.b_end == len(new)
    has_newline = bool(endings[-1]) if last_kept else final_newline
    if chosen and not has_newline:
        chosen[-1] = ""
    return [line + ending for line, ending in zip(spelling, chosen, strict=True)]


def _ending(op: LineOp, twin: int, endings: Sequence[str], above: str) -> str:
    if twin < op.a_end and endings[twin]:
        return endings[twin]
    return above or (endings[op.a_end] if op.a_end < len(endings) else "")


def _keys(lines: list[str], undo_nfc: bool) -> list[str]:
    return [unicodedata.normalize("NFC", line) for line in lines] if undo_nfc else lines


def _split(text: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the lines and their endings; a text that ends with an ending has no empty line behind it."""
    splitter = _SPLIT if "\n" in text or "\r" not in text else _SPLIT_MAC
    pieces = splitter.split(text)
    lines, endings = pieces[0::2], [*pieces[1::2], ""]
    if not lines[-1]:
        lines.pop()
        endings.pop()
    return lines, tuple(endings)
