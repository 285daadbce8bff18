r"""Bytes of a file to text with "\n" lines, and a merged text back to bytes that keep what was not edited.

A byte order mark says what the encoding is: UTF-8, UTF-16 or UTF-32. Without one it is UTF-8 if the bytes are valid,
else one byte is one character, so that every byte comes back: Windows-1252 where the bytes beyond ASCII stand apart, as
accented letters do, and "latin-1" where they come in runs (Cyrillic, Shift-JIS) or in the pairs of UTF-8 (a broken byte
elsewhere). What such bytes mean is not known, so that an edit may add only ASCII, and characters that the file has.

A line ends at "\r\n" or "\n"; a lone "\r" ends a line only in a file without any "\n" (classic Mac OS), and is a
character like any other elsewhere (a progress bar in a fixture). Form feed, vertical tab, NEL, U+2028 and U+2029 never
end a line: `str.splitlines` would break files at them.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from editor.alignment import LineOp, line_opcodes
from editor.errors import BinaryFileError, NotEncodableError, UndecodableError

BOM = "\ufeff"
_SPLIT = re.compile(r"(\r\n|\n)")
_SPLIT_MAC = re.compile(r"(\r)")
# UTF-32 first: its little-endian mark begins with that of UTF-16.
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)
_NAMES = {"utf-8": "UTF-8", "cp1252": "Windows-1252", "latin-1": "an encoding that is not known (it is no valid UTF-8)"}
_UNKNOWN = "latin-1"
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")
_RUN = re.compile(rb"[\x80-\xff]{3,}|[\xc2-\xdf][\x80-\xbf]")
_MAX_IN_RUNS = 0.2
# Not tab, line ends, form feed, backspace (overstruck man pages), DOS end of file, escape (coloured logs).
_CONTROLS = re.compile(rb"[\x01-\x07\x0e-\x19\x1c-\x1f\x7f]")
_MAX_CONTROLS = 0.01
_LOOK_BYTES = 8_192


@dataclass(frozen=True, slots=True)
class SourceText:
    r"""A decoded file: `text` with "\n" lines, and what is needed to give its bytes back.

    `line_endings` has one entry a line: "\n", "\r\n", "\r", or "" for a last line without an ending. `encoding` is the
    name of a codec of Python that decodes all of the file, a BOM to U+FEFF.
    """

    text: str
    bom: bool
    line_endings: tuple[str, ...]
    encoding: str = "utf-8"

    @property
    def dominant_ending(self) -> str:
        r"""Return the most frequent line ending, "\n" for a file without one."""
        counts = Counter(ending for ending in self.line_endings if ending)
        return counts.most_common(1)[0][0] if counts else "\n"


def decode(data: bytes) -> SourceText:
    """Return the text of a file; raises `BinaryFileError` or `UndecodableError`."""
    encoding, text = _decoded(data)
    bom = text.startswith(BOM)
    lines, endings = _split(text[bom:])
    joined = "".join(line + "\n" if ending else line for line, ending in zip(lines, endings, strict=True))
    return SourceText(joined, bom, endings, encoding)


def encode(text: str, source: SourceText, *, undo_nfc: bool = True) -> bytes:
    """Return the bytes to write for a merged text; see `restore`. Raises `NotEncodableError`."""
    restored = restore(text, source, undo_nfc=undo_nfc)
    if source.encoding == _UNKNOWN:
        known = set(source.text)
        added = next((at for at, char in enumerate(restored) if char > "\x7f" and char not in known), None)
        if added is not None:
            raise _not_encodable(restored, added, source.encoding)
    return to_bytes(restored, source.encoding)


def to_bytes(text: str, encoding: str) -> bytes:
    """Encode a whole text, its BOM and line endings included; raises `NotEncodableError`."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise _not_encodable(text, error.start, encoding) from error


def _decoded(data: bytes) -> tuple[str, str]:
    mark, encoding = next(((mark, name) for mark, name in _BOMS if data.startswith(mark)), (b"", "utf-8"))
    if not encoding.startswith(("utf-16", "utf-32")):
        _refuse_nul(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if mark:
            where = f"byte 0x{data[error.start]:02x} at offset {error.start}"
            says = f"The file's byte order mark says {_named(encoding)}, but {where} is not"
            raise UndecodableError(f"{says}; save it as UTF-8 and try again.") from error
        return _decoded_by_byte(data)
    if "\0" in text:
        raise BinaryFileError(f"The file is binary (U+0000 in {_named(encoding)}); only text files can be edited.")
    return encoding, text


def _decoded_by_byte(data: bytes) -> tuple[str, str]:
    controls = len(_CONTROLS.findall(data))
    if controls > _MAX_CONTROLS * len(data):
        says = f"The file is binary ({controls} control characters, and no valid UTF-8)"
        raise BinaryFileError(f"{says}; only text files can be edited.")
    in_runs = sum(map(len, _RUN.findall(data)))
    if in_runs <= _MAX_IN_RUNS * len(_BEYOND_ASCII.findall(data)):
        try:
            return "cp1252", data.decode("cp1252")
        except UnicodeDecodeError:
            pass
    return _UNKNOWN, data.decode(_UNKNOWN)


def _refuse_nul(data: bytes) -> None:
    at = data.find(0)
    if at < 0:
        return
    head = data[:_LOOK_BYTES]
    for first in (0, 1):
        other = len(head[1 - first :: 2]) - head[1 - first :: 2].count(0)
        if len(data) % 2 == 0 and head[first::2].count(0) > 0.4 * len(head) / 2 and other == len(head) // 2:
            says = "The file looks like UTF-16 without a byte order mark"
            raise BinaryFileError(f"{says}; save it as UTF-8, or with a mark, and try again.")
    raise BinaryFileError(f"The file is binary (a NUL byte at offset {at}); only text files can be edited.")


def _not_encodable(text: str, at: int, encoding: str) -> NotEncodableError:
    char = text[at]
    line = sum(1 for _ in (_SPLIT if "\n" in text else _SPLIT_MAC).finditer(text, 0, at)) + 1
    if "\ud800" <= char <= "\udfff":
        message = f"Line {line} of the merged text holds a lone surrogate (U+{ord(char):04X}), which is not text."
    else:
        shown = f"{char!r} (U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip() + ")"
        message = (
            f"Line {line} of the merged text holds {shown}, but the file is in {_named(encoding)}, which cannot be "
            "given it; write it in ASCII (an escape of the language), or save the file as UTF-8 first."
        )
    return NotEncodableError(message, char, line)


def _named(encoding: str) -> str:
    return _NAMES.get(encoding, encoding[: len("utf-16")].upper())


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
