"""Reads in prose (instruction, chat answer, comments) what is to be removed, and where new code belongs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from editor.attribution.statements import COMMENT, IMPORT, find_key, find_name

_REMOVAL_VERB = re.compile(
    r"\b(remov\w*|delet\w*|drop(?:s|ped|ping)?|get(?:ting)? rid|strip\w*|discard\w*|eliminat\w*|unused|no longer|"
    r"go(?:es|ing)?\b(?: away)?|gone|instead of|replac\w*|renam\w*|mov(?:e|es|ed|ing)\b|inlin\w*|merg\w*|collaps\w*|"
    r"simplif\w*|switch\w*|swap\w*|convert\w*|extract\w*|rewrit\w*|take\w* (?:\S+ ){0,4}out|without|clean\w* up|"
    r"shorten\w*|trim\w*|cut)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n\s*\n|\n(?=\s*[-*•\d])")
_CLAUSE = re.compile(r"[,;]\s|\b(?:and|but|so that|while|then)\b")
_OTHER_VERB = re.compile(
    r"\b(?:add\w*|append\w*|creat\w*|defin\w*|insert\w*|introduc\w*|keep\w*|make\w*|pass\w*|put\w*)\b", re.IGNORECASE
)
_SUBJECT = re.compile(r"\W*(?:the\s+)?[\"'`]\S+[\"'`]\W*")
_WORD = re.compile(r"[A-Za-z_$][\w$]*(?:[.\-/:]+[\w$]+)*")
_KINDS: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = (
    (re.compile(r"\b(imports?|use statements?|usings?|requires?|includes?)\b", re.I), IMPORT),
    (re.compile(r"\b(comments?|docs?trings?|jsdoc|todos?|notes?|licen[cs]e|copyright|header)\b", re.I), COMMENT),
    (
        re.compile(r"\b(logs?|logging|console|prints?|debug(?:ging)?|output)\b", re.I),
        re.compile(r"\s*(?:[\w.]*log\w*|console|print\w*|puts|fmt\.Print\w*|echo|debug\w*)\b.*", re.I),
    ),
    (re.compile(r"\b(decorators?|annotations?|attributes?)\b", re.I), re.compile(r"\s*(?:@|#\[|\[\w)")),
    (
        re.compile(r"\b(asserts?|assertions?|checks?|expectations?)\b", re.I),
        re.compile(r"\s*(?:self\.)?(?:assert|expect|check)\w*", re.I),
    ),
)
_NEWLINE = re.compile(r"newline|new line|end of (?:the )?file|\beof\b|trailing", re.IGNORECASE)
_MIN_QUOTE = 6
_QUOTES = re.compile(r"`([^`]+)`|\"([^\"]+)\"|'([^']+)'|“([^”]+)”")
_PLACE_NAME = r"(?:(?:the|its|an?|existing)\s+)*(?:`([^`]+)`|\"([^\"]+)\"|'([^']+)'|([A-Za-z_$@][\w$.\-/]{2,}))"
_AFTER = re.compile(r"\b(?:after|below|beneath|under|underneath|following|next to|behind)\s+" + _PLACE_NAME)
_BEFORE = re.compile(r"\b(?:before|above|ahead of|on top of)\s+" + _PLACE_NAME)
_BETWEEN = re.compile(r"\bbetween\s+" + _PLACE_NAME + r"\s+and\s+" + _PLACE_NAME)
_COMMON = re.compile(
    r"all|and|are|async|await|bool|class|const|def|default|export|false|for|from|function|has|have|import|int|into|its|let|"
    r"new|none|not|null|private|public|return|self|static|string|that|the|this|true|type|use|using|var|void|was|with"
)


def _list_removal_clauses(sentence: str) -> Iterator[str]:
    """Yield the clauses of a sentence about removing: "drop `a`, `b` and define `c`" has two, not three."""
    speaks = False
    subjects: list[str] = []
    for clause in _CLAUSE.split(sentence):
        if _REMOVAL_VERB.search(clause):
            speaks = True
            yield from subjects
        elif _OTHER_VERB.search(clause):
            speaks = False
        if speaks:
            yield clause
        # "`a` and `b` are gone": only names precede the verb.
        subjects = [*subjects, clause] if not speaks and _SUBJECT.fullmatch(clause) else []


class RemovalText:
    """Sentences about removing, moving or replacing, and the definitions and lines that they name."""

    def __init__(self, texts: Sequence[str]) -> None:
        sentences = (part for text in texts for part in _SENTENCE.split(text) if _REMOVAL_VERB.search(part))
        self._text = "\n".join(
            " ".join(part.split()) for sentence in sentences for part in _list_removal_clauses(sentence)
        )
        self._words = {word for part in _WORD.findall(self._text) for word in (part, *re.split(r"[.\-/:]+", part))}
        quotes = (part for found in _QUOTES.findall(self._text) for part in found)
        self._quoted = {quote.strip() for quote in quotes if len(quote.strip()) > 2}
        self.names_newline = any(_NEWLINE.search(text) for text in texts)
        self._kinds = [lines for words, lines in _KINDS if words.search(self._text)]

    @property
    def says_anything(self) -> bool:
        """Return whether any sentence is about removing."""
        return bool(self._text)

    def names_definition(self, name: str) -> bool:
        """Return whether a sentence names a definition."""
        simple = name.rsplit(".", 1)[-1].strip("#\"'`")
        return len(simple) > 1 and (simple in self._words or (" " in simple and simple in self._text))

    def quotes_line(self, line: str) -> bool:
        """Return whether a sentence has a line's whole text in quotes or backticks."""
        return " ".join(line.split()) in self._quoted

    def names_line(self, line: str) -> bool:
        """Return whether a sentence quotes a line, or names its subject or its kind."""
        if not self._text:
            return False
        if self.quotes_line(line):
            return True
        text = " ".join(line.split()).rstrip(";,{}( ")
        if len(text) >= _MIN_QUOTE and text in self._text:
            return True
        if any(kind.match(line) for kind in self._kinds):
            return True
        subjects = {find_name(line), find_key(line)} - {None}
        return any(self._is_named(subject) for subject in subjects if subject is not None)

    def _is_named(self, subject: str) -> bool:
        parts = [subject, subject.rsplit(".", 1)[-1]]
        return any(len(part) > 2 and not _COMMON.fullmatch(part.lower()) and part in self._words for part in parts)


class PlaceText:
    """The names after or before which new code belongs: "after `foo`", "between foo and bar"."""

    def __init__(self, texts: Sequence[str]) -> None:
        text = " ".join(" ".join(texts).split())
        pairs = [("".join(found[:4]), "".join(found[4:])) for found in _BETWEEN.findall(text)]
        self.after = frozenset(
            map(_simplify_name, ["".join(found) for found in _AFTER.findall(text)] + [a for a, _ in pairs])
        )
        self.before = frozenset(
            map(_simplify_name, ["".join(found) for found in _BEFORE.findall(text)] + [b for _, b in pairs])
        )

    @property
    def says_anything(self) -> bool:
        """Return whether any place is named."""
        return bool(self.after or self.before)

    def is_after(self, name: str) -> bool:
        """Return whether new code belongs after the definition of a name."""
        return _simplify_name(name) in self.after

    def is_before(self, name: str) -> bool:
        """Return whether new code belongs before the definition of a name."""
        return _simplify_name(name) in self.before


def _simplify_name(name: str) -> str:
    """Return a name without quotes, brackets of a call and qualifying names; a title as it is."""
    name = name.strip("\"'`#.").removesuffix("()")
    return name if " " in name else name.rsplit(".", 1)[-1]
