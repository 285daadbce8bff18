r"""Decodes a file to text with "\n" lines, and encodes a merged text so that unedited bytes stay as they are.

A byte order mark decides the encoding: UTF-8, UTF-16 or UTF-32. Without one it is UTF-8 if the bytes are valid. Else
one byte is one character, so that every byte is restored: Windows-1252 if the bytes beyond ASCII are single, like
accented letters, and "latin-1" if they come in runs (Cyrillic, Shift-JIS) or in the pairs of UTF-8 (a broken byte
elsewhere). The meaning of such bytes is not known, so an edit may add only ASCII, and characters that the file has.

A line ends at "\r\n" or "\n"; a lone "\r" ends a line only in a file without any "\n" (classic Mac OS), and is a
character like any other elsewhere (a progress bar in a fixture). Form feed, vertical tab, NEL, U+2028 and U+2029 never
end a line: `str.splitlines` would break files at them.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from editor.diff import LineOp, line_opcodes
from editor.errors import BinaryFileError, CodecError, NotEncodableError, UndecodableError

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
    r"""A decoded file: `text` with "\n" lines, and what is needed to restore its bytes.

    `line_endings` has one entry for each line: "\n", "\r\n", "\r", or "" for a last line without an ending. `encoding`
    is the name of a codec of Python that decodes all of the file, a BOM to U+FEFF.
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
    encoding, text = _decode(data)
    bom = text.startswith(BOM)
    lines, endings = _split(text[bom:])
    if "\r" in text:
        joined = "".join(line + "\n" if ending else line for line, ending in zip(lines, endings, strict=True))
    else:
        joined = text[bom:]
    return SourceText(joined, bom, endings, encoding)


def encode(text: str, source: SourceText, *, by_model: bool = True, ops: Sequence[LineOp] = ()) -> bytes:
    """Return the bytes to write for a merged text; see `restore`.

    Raises `NotEncodableError`, also if the written bytes would be taken for a binary file.
    """
    restored = restore(text, source, by_model=by_model, ops=ops)
    if source.encoding == _UNKNOWN:
        known = set(source.text)
        added = next((at for at, char in enumerate(restored) if char > "\x7f" and char not in known), None)
        if added is not None:
            raise _not_encodable_error(restored, added, source.encoding)
    data = to_bytes(restored, source.encoding)
    try:
        _decode(data)
    except CodecError as error:
        raise _binary_error(restored) from error
    return data


@dataclass(frozen=True, slots=True)
class ByteChanges:
    """What new bytes of a file change in addition to its text.

    `endings` are the lines of the new file (from 0) that are in the old one with another ending. `bom` and
    `final_newline` say that a byte order mark, or the newline after the last line, was added or removed.
    """

    endings: tuple[int, ...]
    bom: bool
    final_newline: bool


def compare_bytes(source: SourceText, data: bytes, ops: Sequence[LineOp] = ()) -> ByteChanges:
    """Compare the bytes to write with the file that they replace; `ops` as in `restore`.

    Without `ops` equal lines are paired so that as many endings as possible are kept. A last line that gets or loses
    its newline is no line with another ending. Raises `UnicodeDecodeError` if the bytes are not in the file's encoding.
    """
    text = data.decode(source.encoding)
    bom = text.startswith(BOM)
    lines, endings = _split(text[bom:])
    newlines = [not each or bool(each[-1]) for each in (source.line_endings, endings)]
    others = bom != source.bom, newlines[0] != newlines[1]
    if len({*source.line_endings, *endings} - {""}) < 2:
        return ByteChanges((), *others)
    old = source.text.split("\n")[: len(source.line_endings)]
    twins = (
        (op.a_start + at - op.b_start, at)
        for op in _pair_lines(old, source.line_endings, lines, endings, ops)
        if op.equal
        for at in range(op.b_start, op.b_end)
    )
    changed = tuple(at for twin, at in twins if "" != source.line_endings[twin] != endings[at] != "")
    return ByteChanges(changed, *others)


def _pair_lines(
    old: list[str], old_endings: Sequence[str], new: list[str], new_endings: Sequence[str], ops: Sequence[LineOp]
) -> list[LineOp]:
    """Pair equal lines with equal endings first, then lines of equal text between them."""
    if not ops:
        whole = [list(zip(old, old_endings, strict=True)), list(zip(new, new_endings, strict=True))]
        ops = line_opcodes(whole[0], whole[1])
    return _refine_ops(old, new, ops)


def to_bytes(text: str, encoding: str) -> bytes:
    """Encode a whole text, its BOM and line endings included; raises `NotEncodableError`."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise _not_encodable_error(text, error.start, encoding) from error


def _decode(data: bytes) -> tuple[str, str]:
    mark, encoding = next(((mark, name) for mark, name in _BOMS if data.startswith(mark)), (b"", "utf-8"))
    if not encoding.startswith(("utf-16", "utf-32")):
        _refuse_nul(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if mark:
            where = f"byte 0x{data[error.start]:02x} at offset {error.start}"
            says = f"The file's byte order mark says {_name_encoding(encoding)}, but {where} is not"
            raise UndecodableError(f"{says}; save it as UTF-8 and try again.") from error
        return _decode_by_byte(data)
    if "\0" in text:
        raise BinaryFileError(
            f"The file is binary (U+0000 in {_name_encoding(encoding)}); only text files can be edited."
        )
    return encoding, text


def _decode_by_byte(data: bytes) -> tuple[str, str]:
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


def _not_encodable_error(text: str, at: int, encoding: str) -> NotEncodableError:
    char = text[at]
    line = sum(1 for _ in (_SPLIT if "\n" in text else _SPLIT_MAC).finditer(text, 0, at)) + 1
    if "\ud800" <= char <= "\udfff":
        message = f"Line {line} of the merged text holds a lone surrogate (U+{ord(char):04X}), which is not text."
    else:
        shown = f"{char!r} (U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip() + ")"
        message = (
            f"Line {line} of the merged text holds {shown}, but the file is in {_name_encoding(encoding)}, which "
            "cannot be given it; write it in ASCII (an escape of the language), or save the file as UTF-8 first."
        )
    return NotEncodableError(message, char, line)


def _binary_error(text: str) -> NotEncodableError:
    controls = (at for at, char in enumerate(text) if _CONTROLS.match(char.encode("latin-1", "replace")))
    at = text.index("\0") if "\0" in text else next(controls, 0)
    line = text.count("\n", 0, at) + 1
    what = "a NUL character" if text[at] == "\0" else f"control characters (the first is U+{ord(text[at]):04X})"
    message = (
        f"Line {line} of the merged text holds {what}: the file would be binary, and could not be edited again; write "
        "an escape of the language instead."
    )
    return NotEncodableError(message, text[at], line)


def _name_encoding(encoding: str) -> str:
    return _NAMES.get(encoding, encoding[: len("utf-16")].upper())


def restore(merged: str, source: SourceText, *, by_model: bool = True, ops: Sequence[LineOp] = ()) -> str:
    r"""Return a merged "\n" text with the file's BOM, line endings and spelling, unchanged where nothing was edited.

    A line from the original keeps its own ending; a new line takes the ending of the line that it replaces, else of the
    line before it. `ops` say which lines are from the original (`Merged.ops`): of two equal lines with different
    endings the text alone does not say which one was removed. The final newline is as the merged text has it.

    With `by_model` two slips of models are corrected. A line that differs from the original's only by Unicode
    normalisation counts as unchanged: Qwen's tokenizer composes characters (NFC), so a model cannot copy "e" + U+0301.
    And the final newline stays as it was if the last line did.
    """
    bom = BOM if source.bom and (source.text.startswith(BOM) or not merged.startswith(BOM)) else ""
    if not by_model and len({*source.line_endings} - {""}) <= 1:
        return bom + merged.replace("\n", source.dominant_ending)
    new = merged.split("\n")
    final_newline = new[-1] == ""
    if final_newline:
        new.pop()
    old = source.text.split("\n")[: len(source.line_endings)]
    keys = [[unicodedata.normalize("NFC", line) for line in lines] if by_model else lines for lines in (old, new)]
    told = _refine_ops(keys[0], keys[1], ops)
    parts = _restore_lines(old, new, source.line_endings, told, source.dominant_ending)
    if by_model and parts and told[-1].equal:
        final_newline = bool(source.line_endings[-1])
    if parts and not final_newline:
        parts[-1] = (parts[-1][0], "")
    return bom + "".join(line + ending for line, ending in parts)


def _restore_lines(
    old: list[str], new: list[str], endings: Sequence[str], ops: Sequence[LineOp], fallback: str
) -> list[tuple[str, str]]:
    """Return every line in the file's spelling, with its ending."""
    parts: list[tuple[str, str]] = []
    for op in ops:
        for at in range(op.b_start, op.b_end):
            twin = op.a_start + at - op.b_start
            ending = _choose_ending(op, twin, endings, parts[-1][1] if parts else "") or fallback
            parts.append((old[twin] if op.equal else new[at], ending))
    return parts


def _refine_ops(old: Sequence[Hashable], new: Sequence[Hashable], ops: Sequence[LineOp]) -> list[LineOp]:
    """Return the ops with equal lines inside of a change made ops of their own; without ops, align anew."""
    refined: list[LineOp] = []
    fits = bool(ops) and (ops[-1].a_end, ops[-1].b_end) == (len(old), len(new))
    for op in ops if fits else [LineOp(False, 0, len(old), 0, len(new))]:
        if op.equal:
            refined.append(op)
            continue
        for inner in line_opcodes(old[op.a_start : op.a_end], new[op.b_start : op.b_end]):
            rows = (inner.a_start + op.a_start, inner.a_end + op.a_start, inner.b_start + op.b_start)
            refined.append(LineOp(inner.equal, *rows, inner.b_end + op.b_start))
    return refined


def _choose_ending(op: LineOp, twin: int, endings: Sequence[str], above: str) -> str:
    if twin < op.a_end and endings[twin]:
        return endings[twin]
    return above or (endings[op.a_end] if op.a_end < len(endings) else "")


def _split(text: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the lines and their endings; a text that ends with an ending has no empty line after it."""
    if "\r" not in text:
        lines = text.split("\n")
        endings = ["\n"] * (len(lines) - 1) + [""]
    else:
        pieces = (_SPLIT if "\n" in text else _SPLIT_MAC).split(text)
        lines, endings = pieces[0::2], [*pieces[1::2], ""]
    if not lines[-1]:
        lines.pop()
        endings.pop()
    return lines, tuple(endings)
