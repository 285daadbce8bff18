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
"""Share of the indented lines that must be whole levels deep; other lines are aligned with something."""


def convert_indentation(file_text: str, edit_text: str) -> str:
    """The edit with its levels indented as the file indents them; as it is where that cannot be told, or is so already.

    What tells it are the lines that stand in both, the file's once: two at least, and of the indented ones half must be
    as many levels deep in the edit as in the file. An edit that is written from column 0 stays as it is.
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
    """The indentations, in the edit and in the file, of the lines that both have."""
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
    """A line's whole levels in another unit; what is left of its indentation stays."""
    levels = len(_get_indent(line)) // len(unit)
    return wanted * levels + line[len(unit) * levels :] if line.strip() else line


QUESTION_SLOT = "\ue0f0question\ue0f1"
"""Stands for the last message while a chat template is rendered: nothing of a user's goes through it."""


class TextEncoder(Protocol):
    """The part of a tokenizer that a prompt needs."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a control token."""
        ...

    def encode_template(self, text: str) -> list[int]:
        """Ids of a text of ours, in which names of control tokens are control tokens."""
        ...


SpanEnds = Callable[[list[int]], Sequence[int]]
"""Function from a file's token ids to the ends of its spans, ascending."""


@dataclass(frozen=True, slots=True)
class ApplyPrompt:
    """One apply as token ids.

    `file_ids` is the answer if the edit changed nothing, closing tag included, and `edit_ids` the edit: the draft
    copies from them. The answer ends at `stop`. The first `num_shared` of `token_ids` are the same for every apply of
    the same form and chat template (but for texts that hold the answer's usual tag).

    `file_at` is where in `token_ids` the file stands, [first, end). `segment_ends` are borders of meaning, ascending:
    behind the shared part, before the file, behind each span of it (where it was cut into spans), behind the file. What
    follows belongs together: the edit, and the question, which is about the edit.
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
    """Lay out an apply in `form`: what all applies have in common first, so that its KV is there for the second one.

    The texts come without their final newline. With an `outline`, `file_text` is only a part of a file, the answer is
    that part, and `outline` tells what else the file holds.

    The texts are encoded as plain text: nothing in them can end a turn. Every text and every piece of ours between two
    is encoded apart, so that no token reaches across a border, and the shared part is the same whatever follows.
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
    """Return the common beginning of every apply's prompt."""
    return tuple(encoder.encode_template(_render_frame(template, form, TAG)[0]))


def _render_frame(template: ChatTemplate, form: PromptForm, tag: str) -> tuple[str, str]:
    """The text before the question, and the text between it and the answer."""
    messages = [*form.render_preamble(tag), {"role": "user", "content": QUESTION_SLOT}]
    head, *tails = template.render(messages).split(QUESTION_SLOT)
    if len(tails) != 1:
        raise CorruptModel(f"the model's chat template shows a message {len(tails)} times; it has to show it once")
    return head, f"{tails[0]}<{tag}>\n"


def _choose_tag(text: str) -> str:
    """A tag for the answer that the texts do not hold, so that a file about tags cannot end the answer early."""
    tag, number = TAG, 2
    while tag in text:
        tag, number = f"{TAG}-{number}", number + 1
    return tag
