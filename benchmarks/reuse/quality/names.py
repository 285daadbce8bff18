"""Names that an edit brings in: words of programs, so that nothing but the edit tells for or against them."""

from __future__ import annotations

import re
from random import Random

VERBS: list[str] = re.findall(
    r"\w+",
    """
    acquire apply attach build check collect compute convert decode describe detect emit encode expand extract fetch
    filter flush gather handle insert inspect join lookup match measure merge normalize open parse pick prepare
    process produce query read register release remove render replace report reset resolve restore scan select
    settle shift sort split store strip submit trace transform update validate verify walk wrap
    """,
)
NOUNS: list[str] = re.findall(
    r"\w+",
    """
    anchor archive batch border bucket buffer cell channel chunk column cursor digest entry event field filter folder
    frame group handle header index item job key label layer ledger limit line margin marker message node offset
    option packet page pair path pattern payload pointer prefix queue quota range record region report request
    route row sample schema scope segment session shard signal slot source stage status stream suffix symbol table
    target ticket token topic tree unit value vector view volume window worker zone
    """,
)


def is_alone(text: str, name: str) -> bool:
    """Whether a name occurs once in a text, as a word or a part of one."""
    return text.count(name) == 1


def fresh_name(text: str, old: str, random: Random) -> str:
    """A name of two words in the style of the old one, that is no part of the text and shares no word with it."""
    while True:
        words = [random.choice(VERBS), random.choice(NOUNS)]
        if any(word in old.lower() for word in words):
            continue
        if old[:1].isupper() and not old.isupper():
            name = "".join(word.capitalize() for word in words)
        else:
            name = "_".join(words)
        name = name.upper() if old.isupper() else name
        if name not in text:
            return name


def fresh_noun(text: str, random: Random) -> str:
    """A noun that does not occur in the text; raises ValueError where all do."""
    unused = [noun for noun in NOUNS if noun not in text]
    if not unused:
        raise ValueError("the text holds every noun")
    return random.choice(unused)
