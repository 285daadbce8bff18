"""Probes of reuse: each is held to what its edit does, read anew from the two texts."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import pytest

from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from benchmarks.reuse.quality.layout import LaidOutProbe, lay_out, merged
from benchmarks.reuse.quality.names import fresh_name
from benchmarks.reuse.quality.probe import Probe, holds
from benchmarks.reuse.quality.probes import MAKERS, MOST_A_FILE, make_probes
from benchmarks.reuse.quality.sources import MOST_CHARS, stretches
from tests.models import RealModel

COUNT = 4


@pytest.fixture(scope="module")
def probes() -> dict[str, list[Probe]]:
    return {kind: make_probes(kind, COUNT, seed=3) for kind in MAKERS}


@pytest.fixture(scope="module")
def text(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    return metadata.to_bundle(tokenizer)


@pytest.fixture(scope="module")
def laid_out(probes: dict[str, list[Probe]], text: TokenizerBundle) -> list[LaidOutProbe]:
    return [lay_out(each, text) for made in probes.values() for each in made[:2]]


def test_every_kind_has_probes_the_same_for_a_seed(probes: dict[str, list[Probe]]) -> None:
    assert {kind: len(made) for kind, made in probes.items()} == dict.fromkeys(MAKERS, COUNT)
    assert make_probes("owner", 3, seed=3) == probes["owner"][:3]
    assert make_probes("owner", 3, seed=4) != probes["owner"][:3]
    for made in probes.values():
        files = [each.file_name for each in made]
        assert max(map(files.count, files)) <= MOST_A_FILE


def test_every_edit_leaves_python_and_lies_in_the_middle(probes: dict[str, list[Probe]]) -> None:
    for probe in (each for made in probes.values() for each in made):
        for version in (probe.before, probe.after):
            assert ast.parse(version).body
            assert version.isascii()
        assert 0.1 < probe.edit_start / len(probe.before) < 0.7, probe.kind
        assert len(probe.after) < MOST_CHARS + 200


def assigned(text: str, name: str) -> list[object]:
    values = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assign)]
    return [
        str(node.value.value)
        for node in values
        if isinstance(node.value, ast.Constant) and ast.unparse(node.targets[0]) == name
    ]


def names(text: str) -> list[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def top_level(text: str) -> list[str]:
    kinds = ast.FunctionDef | ast.ClassDef
    return [node.name for node in ast.parse(text).body if isinstance(node, kinds)]


def test_a_constant_has_the_right_value_after_the_edit_and_the_stale_one_before(
    probes: dict[str, list[Probe]],
) -> None:
    for probe in probes["constant"]:
        (name,) = probe.symbols
        assert probe.right in assigned(probe.after, name)
        assert probe.right not in assigned(probe.before, name)
        assert probe.stale in assigned(probe.before, name)
        assert probe.stale not in assigned(probe.after, name)


@pytest.mark.parametrize("kind", ["renamed", "used", "owner"])
def test_a_renamed_definition_has_its_right_name_after_the_edit_only(kind: str, probes: dict[str, list[Probe]]) -> None:
    for probe in probes[kind]:
        assert set(names(probe.after)) - set(names(probe.before)) == {probe.right}
        assert set(names(probe.before)) - set(names(probe.after)) == {probe.stale}
        assert probe.stale not in probe.after
        assert probe.right not in probe.question + probe.begun
        assert probe.stale not in probe.question + probe.begun


@pytest.mark.parametrize(("kind", "factor"), [("derived", 1), ("computed", 2)])
def test_a_derived_value_stands_nowhere_but_follows(kind: str, factor: int, probes: dict[str, list[Probe]]) -> None:
    for probe in probes[kind]:
        (name,) = probe.symbols
        (new,), (old,) = assigned(probe.after, name), assigned(probe.before, name)
        assert (probe.right, probe.stale) == (str(factor * int(str(new))), str(factor * int(str(old))))
        assert probe.after.count(name) == probe.before.count(name) == 2
        assert probe.after.rindex(name) > probe.edit_start + 500


def test_a_callers_right_argument_is_the_first_parameter(probes: dict[str, list[Probe]]) -> None:
    for probe in probes["caller"]:
        for version, wanted in ((probe.after, probe.right), (probe.before, probe.stale)):
            (function,) = [
                node
                for node in ast.walk(ast.parse(version))
                if isinstance(node, ast.FunctionDef) and node.name == probe.symbols[0]
            ]
            assert function.args.args[0].arg == wanted


def test_a_deleted_definition_is_gone_and_the_next_one_follows(probes: dict[str, list[Probe]]) -> None:
    for probe in probes["deleted"]:
        listed = [line.removeprefix("- ") for line in probe.begun.splitlines()[:-1]]
        assert top_level(probe.before)[: len(listed) + 1] == [*listed, probe.stale]
        assert top_level(probe.after)[: len(listed) + 1] == [*listed, probe.right]
        assert probe.stale not in probe.after


def test_a_bystander_stands_in_both_texts_behind_the_edit(probes: dict[str, list[Probe]]) -> None:
    for probe in probes["repeat"] + probes["go on"]:
        begun = probe.begun.removeprefix("```python\n")
        (name,) = {name for name in names(probe.after) if f"`{name}`" in probe.question}
        assert names(probe.after).count(name) == 1
        place = probe.after.index(f"def {name}(")
        assert place + len(name) + 4 > probe.edit_start  # a deletion of one `def` of two can begin behind either
        assert f"def {name}(" in probe.before
        assert probe.after.count(begun) == 1
        assert probe.judged("anything") == "other"


def test_an_answer_is_judged_by_which_symbol_comes_first() -> None:
    probe = Probe("caller", "conclusion", "f.py", "a", "b", "?", "", "depth", "path")
    assert probe.judged("depth=depth, path=path)") == "right"
    assert probe.judged("path=path, depth=depth)") == "stale"
    assert probe.judged("path_depth=1, the_path") == "other"
    assert holds("x = 12.", "12")
    assert not holds("x = 12.5 + 112 + a.12", "12")


def test_a_probe_whose_answers_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="stale answer"):
        Probe("default", "look-up", "f.py", "a", "b", "?", "", "x y", "y")
    with pytest.raises(ValueError, match="changes nothing"):
        Probe("default", "look-up", "f.py", "a", "a", "?", "", "x", "y")
    with pytest.raises(ValueError, match="if and only if"):
        Probe("default", "look-up", "f.py", "a", "b", "?", "")


def test_fresh_names_keep_the_style() -> None:
    random = Random(1)
    for _ in range(50):
        assert fresh_name("", "MAX_SIZE", random).isupper()
        assert fresh_name("", "FileReader", random)[0].isupper()
        assert fresh_name("", "read_file", random).islower()
    assert fresh_name("scan", "read", Random(1)) == fresh_name("scan", "read", Random(1))


def test_stretches_are_whole_statements_of_their_file(tmp_path: Path) -> None:
    body = "".join(f"# about {n}\n@cache\ndef function_{n}(value):\n    return value + {n}\n\n\n" for n in range(200))
    (tmp_path / "module.py").write_text(body)
    (tmp_path / "broken.py").write_text("def f(:\n" * 2000)
    for _, stretch in zip(range(20), stretches(Random(2), tmp_path), strict=False):
        assert stretch.file_name == "module.py"
        assert stretch.text.strip() in body
        first = stretch.functions()[0]
        start, end = stretch.whole(first)
        assert stretch.text[start:end] == f"@cache\n{ast.unparse(first).split(chr(10), 1)[1]}\n"


def test_both_turns_differ_by_the_changed_tokens_and_the_question(
    laid_out: list[LaidOutProbe], text: TokenizerBundle
) -> None:
    for each in laid_out:
        start, end = each.changed
        head, tail = len(each.head), len(each.tail)
        shift = len(each.before.token_ids) - len(each.after.token_ids)
        assert each.prompt[:start] == each.first_prompt[:start]
        assert each.prompt[end : each.tail_start] == each.stale_prompt[end + shift : len(each.stale_prompt) - tail]
        assert each.prompt[start:end] != each.stale_prompt[start : end + shift]
        assert text.tokenizer.decode(each.prompt[head : each.tail_start]) == each.probe.after
        assert each.prompt[each.tail_start :] == each.stale_prompt[-tail:]
        assert text.tokenizer.decode(each.tail).endswith(each.probe.begun)
        begun = each.probe.begun.removeprefix("```python\n")
        assert not each.copied or begun + text.tokenizer.decode(each.copied) in each.probe.after
        assert bool(each.copied) == (each.probe.probe_class == "insensitive")


def test_segments_and_definitions_are_those_of_the_new_text(
    laid_out: list[LaidOutProbe], text: TokenizerBundle
) -> None:
    for each in laid_out:
        assert list(each.segment_ends) == sorted(set(each.segment_ends))
        assert each.segment_ends[-1] == each.tail_start
        found = [text.tokenizer.decode(each.prompt[first:end]) for first, end in each.definitions]
        for name, definition in zip(names(each.probe.after), found, strict=True):
            assert f" {name}" in definition.strip().split("\n")[0]


def test_ranges_are_merged() -> None:
    assert merged([(5, 7), (1, 3), (3, 4), (6, 9), (2, 2)]) == [(1, 4), (5, 9)]
