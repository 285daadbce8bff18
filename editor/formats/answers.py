"""Separates the text of a file in a chat answer from the talk and code fences around it.

Where a fence is next to other lines, either the fence belongs to the answer and the lines are talk, or both belong to
the file. The name of the file decides most cases. A program has no sentences and no fences except in comments and
strings. In Markdown only a fence for Markdown belongs to the answer, and only next to talk that says so. Where the
two cannot be distinguished the edit is refused, as is one whose fence is not closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from editor.errors import EditSyntaxError
from editor.formats.markup import (
    Fence,
    Kind,
    do_paths_fit,
    find_fences,
    find_kind,
    is_fence,
    is_in_literal,
    is_label,
    parse_file_name,
    strip_fence,
)
from editor.grammars import find_language
from editor.placeholders import is_placeholder

_MARKDOWN_INFOS = frozenset({"markdown", "md", "mdx"})
_PLAIN_INFOS = frozenset({"", "text", "txt", "plaintext", "plain"})
_SHELL_INFOS = frozenset({"sh", "bash", "shell", "console", "zsh", "terminal", "powershell", "cmd", "bat", "output"})
# fmt: off
_LANGUAGES = {
    "py": "python", "js": "javascript", "jsx": "javascript", "ts": "typescript", "golang": "go", "rs": "rust",
    "c++": "cpp", "cs": "csharp", "c#": "csharp", "rb": "ruby", "yml": "yaml",
}
# fmt: on
# Languages that are often taken for each other.
_FAMILY = {
    **{name: name for name in ("python", "go", "rust", "java", "csharp", "ruby", "yaml", "toml", "sql")},
    **dict.fromkeys(("javascript", "typescript", "tsx", "json"), "javascript"),
    **dict.fromkeys(("c", "cpp"), "c"),
    **dict.fromkeys(("html", "php", "css"), "html"),
}
# Beginnings of sentences about an edit; other prose seldom begins so.
_TALK = re.compile(
    r"[\s*_>]*(?:sure|certainly|of course|absolutely|okay|ok|got it|done|"
    r"here(?:['’]s| is| are| it is| you (?:go|are)| they are)|"
    r"i(?:['’](?:ve|ll|d|m)| have| will| would| am| also| just| think| need| see| \w+ed| left| made| kept| put)|"
    r"let me|below (?:is|are)|(?:added|updated|changed|created|removed|fixed|opened|renamed|moved)\b|"
    r"(?:the )?changes?(?: made)?:|the (?:updated|new|changed|modified|complete|full|whole|edited|fixed|corrected|"
    r"revised|rest of the)\b|this (?:adds|changes?|edit|updates?|removes|version|file now)|"
    r"(?:update|edit|change|modify|replace) (?:the|your|this|in)\b|in [`*\"]|rest of the)",
    re.IGNORECASE,
)
# Sentences in Markdown that can only be about the edit.
_EDIT_TALK = re.compile(
    r"[\s*_>]*(?:i(?:['’](?:ve|ll|d)| have| \w+ed| made)\b|.*\b(?:updated|edited|changed|modified|revised|full|"
    r"complete|new|whole|entire|your|the)\b.*\b(?:readme|file|document|docs?|documentation|version|content|text|page|"
    r"markdown|md)\b)",
    re.IGNORECASE,
)
_OWN_EDIT = re.compile(
    r"i(?:['’]ve| have)? (?:also )?(?:added|updated|changed|removed|fixed|created|rewr[io]t\w*|renamed|moved)\b.*[.!]",
    re.IGNORECASE,
)
_HEADING = re.compile(r"(?:the )?(?:changes?|explanation|summary|notes?)(?: made)?:", re.IGNORECASE)
# At most so many lines at each end of an edit may be talk.
_MAX_END = 5
_ENDING = re.compile(r"[A-Z][\w'’]*(?:[ ,]+[\w'’`()/-]+){3,}[.!]")
_SENTENCE = re.compile(r"[A-Z][^;{}=<>\[\]]*[:.!]")
_MIN_WORDS = 3
_STRUCTURE = re.compile(r"\s*(?:#{1,6} |[-*+] |\d+\. |\||>)")
_CODE = re.compile(
    r".*[;{}]\s*|\s*[\w.\[\]]+ *(?:[-+*/|&%]|:)?= *\S.*|\s*(?:import [\w.]+|from [\w.]+ import .*)|"
    r"\s*(?:def|class|func|fn|function|const|let|var|public|private|static) \w+.*[(:={].*|"
    r"\s*(?:\*/|#include\b.*|@\w+(?:\(.*)?|\"{3}|'{3})"
)
_INLINE_CODE = re.compile(r"`[^`]*`")
# An edit that begins so is a call of a tool, thoughts, or a command for a shell.
_CALL = re.compile(
    r"\s*</?(?:think|thinking|write_to_file|replace_in_file|apply_diff|edit_file|create_file|str_replace\w*|"
    r"function_calls?|invoke|tool_calls?|tool_use|parameter|antml:\w+|edits?|old_text|new_text)\b[^>]*>.*|"
    r"(?:write_file|create_file|edit_file|str_replace\w*|apply_patch|write_to_file)\(.*|\[tool_\w+.*|"
    r"\$ \w.*|cat >+ ?\S+ <<.*",
    re.IGNORECASE,
)
# Tags around a file that are no elements of HTML.
_WRAPPER = re.compile(
    r"<(?P<name>file|files|answer|\w*[_-]?(?:file|code|content|snippet)|output|response|result|document|source)\b[^>]*>",
    re.IGNORECASE,
)
_MARKUP = re.compile(
    r".*\.(?:html?|xhtml|xml|svg|vue|svelte|astro|xaml|plist|\w+proj|wxs|resx|jsx|tsx|php|erb|ejs)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The edit in a chat answer: its `parts`, and the `prose` around them.

    A part is the inside of one fence; all lines are one part where no fence was taken off. `infos` are the info strings
    of the fences, one for each part ('' where there is none).
    """

    parts: tuple[tuple[str, ...], ...]
    infos: tuple[str, ...]
    prose: str = ""


@dataclass(frozen=True, slots=True)
class _AnswerPage:
    """The lines of an answer, its fences, and the solid lines outside of them."""

    lines: Sequence[str]
    path: str
    kind: Kind
    fences: tuple[Fence, ...]
    outside: tuple[int, ...]

    def get_inside(self, fence: Fence) -> tuple[str, ...]:
        return fence.get_inside(self.lines)

    def take_all(self) -> ChatAnswer:
        return ChatAnswer((tuple(self.lines),), ("",))

    def take_fences(self, fences: Sequence[Fence]) -> ChatAnswer:
        kept = {at for fence in fences for at in range(fence.start, fence.end + 1)}
        prose = "\n".join(line for at, line in enumerate(self.lines) if at not in kept).strip("\n")
        return ChatAnswer(tuple(map(self.get_inside, fences)), tuple(fence.info for fence in fences), prose)


def read_answer(lines: Sequence[str], path: str = "", *, whole: bool = False) -> ChatAnswer:
    """Return the edit of one file and the talk around it; raises `EditSyntaxError` where they cannot be distinguished.

    `path` is the file that is edited, "" if it is not known; `whole` says that the edit is the whole file.
    """
    page = _read_page(lines, path)
    _refuse_calls(page)
    if not page.fences:
        return _read_unfenced(page)
    if page.kind in ("code", "json", "patch") and is_in_literal(page.lines, page.fences[0].start):
        return page.take_all()
    if any(not fence.is_closed for fence in page.fences):
        return _read_unclosed(page, whole=whole)
    if page.kind in ("markdown", "text", "unknown"):
        return _read_text_answer(page, whole=whole)
    return _read_code_answer(page, whole=whole)


def join_prose(lines: Sequence[str], outside: Iterable[int]) -> str:
    """Return the lines outside of the blocks of an edit as one text, without the fences around them."""
    return "\n".join(lines[at] for at in outside if not is_fence(lines[at])).strip("\n")


def is_code(line: str) -> bool:
    """Return whether a line next to a fence is code rather than talk."""
    return not is_placeholder(line) and _CODE.fullmatch(_INLINE_CODE.sub("x", line)) is not None


def _refuse_calls(page: _AnswerPage) -> None:
    """Refuse an edit that is no text of a file: the call of a tool, a command, or a text in tags."""
    first = next((line for line in page.lines if line.strip()), "")
    last = next((line for line in reversed(page.lines) if line.strip()), "")
    is_shell = find_language(page.path) == "bash" or page.kind == "patch"
    wrapper = None if _MARKUP.fullmatch(page.path) else _WRAPPER.fullmatch(first.strip())
    is_wrapped = wrapper is not None and last.strip().lower() == f"</{wrapper['name'].lower()}>" and not page.fences
    if is_wrapped or (_CALL.fullmatch(first) and not is_shell):
        raise _unclear_error(f"The edit begins with '{first.strip()[:40]}', which is no line of a file.")


def _read_page(lines: Sequence[str], path: str) -> _AnswerPage:
    fences = find_fences(lines)
    kind = find_kind(path)
    if kind == "unknown" and len(fences) == 1 and fences[0].info not in _PLAIN_INFOS | _MARKDOWN_INFOS | _SHELL_INFOS:
        kind = "code"
    if kind in ("code", "json") and not fences:
        fences = _find_list_fences(lines)
    within = {at for fence in fences for at in range(fence.start, fence.end + 1)}
    outside = tuple(at for at, line in enumerate(lines) if line.strip() and at not in within)
    return _AnswerPage(lines, path, kind, fences, outside)


def _find_list_fences(lines: Sequence[str]) -> tuple[Fence, ...]:
    """Return the indented fences of an answer that is a list of steps."""
    first = next((line for line in lines if line.strip()), "")
    return find_fences(lines, indented=True) if re.match(r"(?:\d+[.)]|[-*+]) ", first) else ()


def _read_unfenced(page: _AnswerPage) -> ChatAnswer:
    """Read an answer without fences: drop the file's name above a program, refuse talk above and below the text."""
    if not page.outside:
        return page.take_all()
    is_program = page.kind in ("code", "json")
    first = page.lines[page.outside[0]]
    if is_program and len(page.outside) > 1 and _is_title(first, page.path):
        return ChatAnswer((tuple(page.lines[page.outside[1] :]),), ("",), first.strip())
    for at in _find_end_paragraphs(page):
        line = page.lines[at]
        if (_is_talk_near_code if is_program else _is_talk_near_text)(page, at):
            raise _unclear_error(f"The line '{line.strip()[:60]}' is talk, and no line of the file.")
    return page.take_all()


def _find_end_paragraphs(page: _AnswerPage) -> list[int]:
    """Return the solid lines at the beginning of the first and at the end of the last paragraph."""
    above = next((at for at in range(page.outside[0], len(page.lines)) if not page.lines[at].strip()), len(page.lines))
    below = next((at for at in reversed(range(page.outside[-1])) if not page.lines[at].strip()), -1)
    return [
        at
        for at in page.outside
        if at < min(above, page.outside[0] + _MAX_END) or at > max(below, page.outside[-1] - _MAX_END)
    ]


def _is_talk_near_code(page: _AnswerPage, at: int) -> bool:
    line = _INLINE_CODE.sub("x", page.lines[at].strip())
    above = page.lines[at - 1].strip() if at else ""
    is_last = at == page.outside[-1] and len(page.outside) > 1 and not above
    said = (is_last and _ENDING.fullmatch(line)) or (_TALK.match(page.lines[at]) and _SENTENCE.fullmatch(line))
    enough = len(line.split()) >= _MIN_WORDS or _HEADING.fullmatch(line)
    return bool(said and enough) and not is_in_literal(page.lines, at)


def _is_talk_near_text(page: _AnswerPage, at: int) -> bool:
    """Return whether a line of a text is talk: it speaks of the sender's own edit, or introduces the file."""
    line = page.lines[at]
    introduces = at == page.outside[0] and line.rstrip().endswith(":") and _TALK.match(line) and _EDIT_TALK.match(line)
    return bool(introduces or (page.kind != "unknown" and len(page.outside) > 1 and _OWN_EDIT.fullmatch(line)))


def _is_title(line: str, path: str) -> bool:
    """Return whether a line above a program is the name of its file, not a comment or an entry of a list of files."""
    is_list = path.lower().endswith(("ignore", "owners", ".in"))
    return _names_the_file(line, path) and not is_list and not line.lstrip().startswith(("#", "//"))


def _read_unclosed(page: _AnswerPage, *, whole: bool) -> ChatAnswer:
    """Read an answer with an unclosed fence: refuse it as cut off, unless the fence is in a comment of the file."""
    opened = next(fence for fence in page.fences if not fence.is_closed)
    if any(is_placeholder(page.lines[at]) for at in page.outside) and not whole:
        return page.take_all()
    begins = not any(line.strip() for line in page.lines[: opened.start])
    ends = not any(line.strip() for line in page.lines[opened.start + 1 :])
    if page.kind in ("code", "json") or begins or (ends and whole):
        raise EditSyntaxError(
            "malformed",
            f"The code fence of line {opened.start + 1} of the edit is not closed: its end may be missing.",
            "Send the edit again with the fence closed, or without a fence.",
        )
    return page.take_all()


def _read_code_answer(page: _AnswerPage, *, whole: bool) -> ChatAnswer:
    """Return the insides of the fences: outside of comments and strings no fence belongs to a program."""
    code = next((at for at in page.outside if is_code(page.lines[at])), None)
    if code is not None:
        if not whole and any(map(is_placeholder, page.lines)):
            return page.take_all()
        raise _unclear_error(
            f"Line {code + 1} of the edit ('{page.lines[code].strip()[:60]}') stands outside of the code fence."
        )
    fences = _select_fences(page)
    if whole and len(fences) > 1:
        raise _unclear_error(f"The edit has {len(fences)} code fences, and not one with the whole file.")
    markers = [at for at in page.outside if is_placeholder(page.lines[at])]
    taken = page.take_fences(fences) if not markers or whole else _keep_markers(page, fences, markers)
    return replace(taken, parts=tuple(tuple(strip_fence(part)) for part in taken.parts))


def _keep_markers(page: _AnswerPage, fences: Sequence[Fence], markers: Sequence[int]) -> ChatAnswer:
    """Return the insides of the fences with the placeholders that are between and around them."""
    taken = page.take_fences(fences)
    parts: list[tuple[str, ...]] = []
    at = 0
    for fence, inside in zip(fences, taken.parts, strict=True):
        parts.append((*(page.lines[marker] for marker in markers if at <= marker < fence.start), *inside))
        at = fence.end
    parts[-1] += tuple(page.lines[marker] for marker in markers if marker >= at)
    return ChatAnswer(tuple(parts), taken.infos, taken.prose)


def _select_fences(page: _AnswerPage) -> list[Fence]:
    """Return the fences of the file: not those in another language, nor those of other files."""
    named = {fence: _find_fence_name(page, fence) for fence in page.fences}
    ours = [fence for fence in page.fences if named[fence] and do_paths_fit(page.path, named[fence])]
    theirs = [name for fence, name in named.items() if name and fence not in ours and not is_label(name)]
    if page.path and theirs and len(page.fences) > 1:
        raise EditSyntaxError(
            "several_files",
            f"The edit has code fences for other files: {', '.join(dict.fromkeys(theirs))}.",
            "Send the edit of each file by itself.",
        )
    language = find_language(page.path)
    only_shell = all(fence.info in _SHELL_INFOS for fence in page.fences)
    found = [fence for fence in page.fences if not _is_other_language(fence.info, language, only_shell=only_shell)]
    if not found:
        raise _unclear_error(f"The code fence holds '{page.fences[0].info}', and no lines of '{page.path}'.")
    return found


def _is_other_language(info: str, language: str | None, *, only_shell: bool) -> bool:
    """Return whether a fence is in another language than the file; commands are, if other fences hold no commands."""
    if info in _SHELL_INFOS:
        return language != "bash" and (language is not None or not only_shell)
    said = _LANGUAGES.get(info, info)
    known = language is not None and said in _FAMILY
    return known and _FAMILY[said] != _FAMILY.get(language or "", language)


def _find_fence_name(page: _AnswerPage, fence: Fence) -> str:
    """Return the file that a fence names in its info string or in the line above it."""
    above = [line for line in page.lines[max(0, fence.start - 2) : fence.start] if line.strip()]
    return parse_file_name(page.lines[fence.start]) or (parse_file_name(above[-1]) if above else "")


def _read_text_answer(page: _AnswerPage, *, whole: bool) -> ChatAnswer:
    """Read an answer for a text, which may have fences of its own."""
    fence = page.fences[0]
    is_markdown = page.kind == "markdown"
    if not page.outside and len(page.fences) == 1:
        own = is_markdown and fence.info not in _MARKDOWN_INFOS | _PLAIN_INFOS
        return page.take_all() if own else page.take_fences([fence])
    talk = [page.lines[at] for at in page.outside]
    names = [line for line in talk if _names_the_file(line, page.path)]
    talks = bool(names) or any((_EDIT_TALK if is_markdown and whole else _TALK).match(line) for line in talk)
    structured = any(_STRUCTURE.match(line) and line not in names and not _TALK.match(line) for line in talk)
    fits = (
        fence.info in _MARKDOWN_INFOS or (not is_markdown and fence.info not in _SHELL_INFOS) or _is_like_markdown(page)
    )
    elides = any(map(is_placeholder, page.get_inside(fence))) and not any(map(is_placeholder, talk))
    if len(page.fences) == 1:
        if (
            talks
            and (fits or (elides and not whole))
            and not any(line.startswith("#") and line not in names for line in talk)
        ):
            return page.take_fences([fence])
        if not talks and not structured and not whole and (fence.info in _MARKDOWN_INFOS or elides):
            return page.take_fences([fence])
    talks = talks or any(map(_TALK.match, talk))
    if (talks and not structured) or (talks and fits and whole) or (whole and _may_be_wrapped(page)):
        raise _open_talk_error()
    if whole and not structured and (fence.info in _MARKDOWN_INFOS or not is_markdown):
        raise _open_talk_error()
    return page.take_all()


def _may_be_wrapped(page: _AnswerPage) -> bool:
    """Return whether a fence may enclose everything although it seems to close earlier: fences are at both ends."""
    solid = [line for line in page.lines if line.strip()]
    first, last = page.fences[0], page.fences[-1]
    is_first = page.lines[first.start] == solid[0] and first.info in _MARKDOWN_INFOS | _PLAIN_INFOS
    return is_first and last is not first and page.lines[last.end] == solid[-1]


def _is_like_markdown(page: _AnswerPage) -> bool:
    """Return whether the first fence, which names no language, holds Markdown."""
    fence = page.fences[0]
    inside = [line for line in page.get_inside(fence) if line.strip()]
    return fence.info in _PLAIN_INFOS and bool(inside) and re.match(r"#{1,6} \S|---$", inside[0]) is not None


def _names_the_file(line: str, path: str) -> bool:
    """Return whether a line is the path of the file, and nothing else."""
    name = parse_file_name(line)
    return bool(path and name) and do_paths_fit(path, name)


def _open_talk_error() -> EditSyntaxError:
    return _unclear_error(
        "Text stands beside a code fence, and nothing says whether it is talk or belongs to the file."
    )


def _unclear_error(message: str) -> EditSyntaxError:
    return EditSyntaxError(
        "malformed",
        message,
        "Send only the lines of the file, without talk; put a text that has code fences of its own into a fence of "
        "four backticks.",
    )
