"""The fuzzer's saved corpus is replayed without atheris, and stays small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_the_saved_inputs_find_nothing(target: str) -> None:
    files = sorted((CORPUS / target).iterdir())
    assert files
    for file in files:
        TARGETS[target](file.read_bytes())


def test_the_corpus_is_small() -> None:
    assert sum(file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()) < 200_000


def test_a_row_of_dots_does_not_hang_the_reader() -> None:
    """Found by the fuzzer: the dots could be parted in exponentially many ways."""
    TARGETS["parsing"](b"\x00" + b"." * 100 + b"+")
