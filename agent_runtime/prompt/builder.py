"""Builds the prompt of an apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent_runtime.errors import CorruptModel
from agent_runtime.prompt.chat_template import ChatTemplate
from agent_runtime.prompt.forms import DEFAULT, TAG, ApplyTexts, PromptForm

_WIDTHS = (8, 4, 2)
_SHARE = 0.9
"""Minimum share of indented lines that are whole levels deep; the others are aligned with something."""


def convert_indentation(file_text: str, edit_text: str) -> str:
    """Convert the edit's indentation to the file's unit; return the edit unchanged if that is impossible or
    unnecessary.

    The unit is found from lines that the edit and the file share, if the file has them once. At least two are needed,
    and half of the indented ones must be equally many levels deep in both. An edit that starts at column 0 stays as it
    is.
    """
    file_lines, edit_lines = file_text.split("\n"), edit_text.split("\n")
    unit, wanted = _find_unit(edit_lines), _find_unit(file_lines)
    if unit is None or wanted is None or unit == wanted:
        return edit_text
    pairs = list(_match_indents(edit_lines, file_lines))
    agree = [_count_levels(own, unit) == _count_levels(other, wanted) for own, other in pairs if own or other]
    if len(pairs) < 2 or not agree or sum(agree) < len(agree) / 2:
        return edit_text
    return "\n".join(_convert_line(line, unit, wanted) for line in edit_lines)


def _find_unit(lines: Sequence[str]) -> str | None:
    """Return the indentation of one level; None if nothing is indented, or tabs and spaces are mixed."""
    indents = [indent for line in lines if line.strip() and (indent := _get_indent(line))]
    if not indents or len(set("".join(indents))) != 1:
        return None
    if indents[0][0] == "\t":
        return "\t"
    fit = (width for width in _WIDTHS if sum(len(one) % width == 0 for one in indents) >= _SHARE * len(indents))
    return " " * width if (width := next(fit, 0)) else None


def _match_indents(edit_lines: Sequence[str], file_lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the indentations in the edit and in the file of the lines that both have."""
    where: dict[str, list[str]] = {}
    for line in file_lines:
        where.setdefault(line.strip(), []).append(_get_indent(line))
    for line in edit_lines:
        found = where.get(line.strip(), ())
        if line.strip() and len(found) == 1:
            yield _get_indent(line), found[0]


def _get_indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _count_levels(indent: str, unit: str) -> float:
    return len(indent) / len(unit)


def _convert_line(line: str, unit: str, wanted: str) -> str:
    """Convert a line's whole levels to another unit; the rest of its indentation stays."""
    levels = len(_get_indent(line)) // len(unit)
    return wanted * levels + line[len(unit) * levels :] if line.strip() else line


QUESTION_SLOT = "\ue0f0question\ue0f1"
"""Stands for the last message while the chat template is rendered, so that no user text goes through the template."""


class TextEncoder(Protocol):
    """The methods of a tokenizer that a prompt needs."""

    def encode(self, text: str) -> list[int]:
        """Encode a text without control tokens."""

    def encode_template(self, text: str) -> list[int]:
        """Encode text of the chat template, in which names of control tokens are control tokens."""


SpanEnds = Callable[[list[int]], Sequence[int]]
"""Returns the ends of a file's spans in its token ids, ascending."""


@dataclass(frozen=True, slots=True)
class ApplyPrompt:
    """The prompt of one apply as token ids.

    file_ids: the unchanged file and the closing tag, which is the answer if the edit changed nothing. edit_ids: the
    edit. The draft copies from both. stop: the text that ends the answer. num_shared: length of the prefix that is the
    same for every apply with this form and chat template, unless a text contains the usual tag.

    file_at: range [first, end) of the file in `token_ids`. segment_ends: ascending borders: after the shared prefix,
    before the file, after each of its spans (if it was cut), after the file. The rest is one segment: the edit and the
    question about it.
    """

    token_ids: tuple[int, ...]
    file_ids: tuple[int, ...]
    edit_ids: tuple[int, ...]
    stop: str
    num_shared: int
    file_at: tuple[int, int] = (0, 0)
    segment_ends: tuple[int, ...] = ()


def build_prompt(
    template: ChatTemplate,
    encoder: TextEncoder,
    *,
    file_text: str,
    edit_text: str,
    instruction: str,
    outline: str = "",
    form: PromptForm = DEFAULT,
    span_ends: SpanEnds | None = None,
) -> ApplyPrompt:
    """Build the prompt of an apply in `form`: the part that all applies share comes first, so that its KV is reused.

    The texts have no final newline. With an `outline`, `file_text` and the answer are only a part of a file, and the
    outline describes the rest.

    The texts are encoded without control tokens, so nothing in them can end a turn. Each text, and each piece between
    two, is encoded alone, so no token crosses a border and the shared prefix does not depend on what follows.
    `span_ends` cuts the file's tokens into spans.
    """
    edit_text = convert_indentation(file_text, edit_text)
    tag = _choose_tag(file_text + edit_text)
    head, tail = _render_frame(template, form, tag)
    token_ids = encoder.encode_template(head)
    num_shared = len(token_ids)
    texts = ApplyTexts(file=file_text, edit=edit_text, instruction=instruction, outline=outline)
    file_at, ends = (0, 0), [num_shared]
    for piece in form.render_question(texts):
        ids = encoder.encode(piece.text) if piece.section else encoder.encode_template(piece.text)
        if piece.section == "code":
            first = len(token_ids)
            file_at = (first, first + len(ids))
            ends += [first, *(first + end for end in (span_ends(ids) if span_ends else ())), file_at[1]]
        token_ids += ids
    token_ids += encoder.encode_template(tail)
    stop = f"</{tag}>"
    return ApplyPrompt(
        token_ids=tuple(token_ids),
        file_ids=tuple(encoder.encode(f"{file_text}\n{stop}")),
        edit_ids=tuple(encoder.encode(edit_text)),
        stop=stop,
        num_shared=num_shared,
        file_at=file_at,
        segment_ends=tuple(dict.fromkeys(ends)),
    )


def encode_shared_prefix(template: ChatTemplate, encoder: TextEncoder, form: PromptForm = DEFAULT) -> tuple[int, ...]:
    """Encode the common prefix of every apply's prompt."""
    return tuple(encoder.encode_template(_render_frame(template, form, TAG)[0]))


def _render_frame(template: ChatTemplate, form: PromptForm, tag: str) -> tuple[str, str]:
    """Return the text before the question, and the text between the question and the answer."""
    messages = [*form.render_preamble(tag), {"role": "user", "content": QUESTION_SLOT}]
    head, *tails = template.render(messages).split(QUESTION_SLOT)
    if len(tails) != 1:
        raise CorruptModel(f"the model's chat template shows a message {len(tails)} times; it has to show it once")
    return head, f"{tails[0]}<{tag}>\n"


def _choose_tag(text: str) -> str:
    """Return a tag that the texts do not contain, so that a file about tags cannot end the answer early."""
    tag, number = TAG, 2
    while tag in text:
        tag, number = f"{TAG}-{number}", number + 1
    return tag
