"""The questions to the model about the regions of an edit, and how its answers are put into the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import Busy, DeadlinePassed, TooLarge
from agent_runtime.llm import generate
from agent_runtime.llm.interface import ModelTask
from agent_runtime.llm.merger import MAX_LINES_AGAIN, ModelMerger, build_draft
from agent_runtime.llm.questions import FileEncoder, build_questions, find_scope
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from agent_runtime.prompt.builder import build_prompt
from agent_runtime.request_context import NO_PROGRESS, RequestContext
from agent_runtime.types import ApplyRequest, ApplyResult, GivenScope
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from engine import errors as engine_errors
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.types import Proposer
from repo_cache import syntax as repo_syntax
from repo_cache.chunks import cut_spans
from repo_cache.errors import TokenizerError
from repo_cache.incremental import encode_text
from repo_cache.token_encoder import FileVersion, TokenEncoder
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens
from tests.agent_runtime.fake_engine import Answer, FakeEngine
from tests.models import RealModel


def function(number: int) -> str:
    return f"def step_{number}(value):\n    total = value * {number}\n    print(total)\n    return total\n"


def file_of(num_functions: int) -> str:
    return "import os\n\n\n" + "\n\n".join(function(number) for number in range(num_functions))


SHORT, LONG, HUGE = file_of(50), file_of(200), file_of(1700)
CHANGE = "<<<<<<< SEARCH\n    total = value * 30\n=======\n    total = 0\n>>>>>>> REPLACE\n"
TWO_CHANGES = CHANGE + CHANGE.replace("30", "11")
RIGHT = function(30).replace("total = value * 30", "total = 0")


def task_of(text: str, edit: str, **options: Any) -> ModelTask:
    request = ApplyRequest(text.encode(), edit, "a.py", **({"mode": "model"} | options))
    parsed = parse(edit)
    return ModelTask(text, request, parsed, merge(text, parsed, find_language("a.py")))


@pytest.fixture(scope="module")
def text_side(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    return metadata.to_bundle(tokenizer)


@pytest.fixture
def asking(text_side: TokenizerBundle) -> Callable[[Answer], tuple[FakeEngine, ModelMerger]]:
    def made(answer: Answer) -> tuple[FakeEngine, ModelMerger]:
        engine = FakeEngine(answer, text_side)
        return engine, ModelMerger(LoadedModel("fake", engine, text_side, 0.0, 0))  # type: ignore[arg-type]

    return made


Asking = Callable[[Answer], tuple[FakeEngine, ModelMerger]]


def code_in(prompt: str) -> str:
    """The last code that a prompt shows: what is to be edited."""
    return prompt.rpartition("<code>\n")[2].partition("\n</code>")[0] + "\n"


def edited(prompt: str) -> str:
    """The right answer to whatever part of `TWO_CHANGES` is asked for."""
    code = code_in(prompt)
    for number in (30, 11):
        if f"value * {number}\n=======" in prompt:
            code = code.replace(f"value * {number}\n", "0\n")
    return code


def applied(merger: ModelMerger, text: str, edit: str, **options: Any) -> ApplyResult:
    return Applier(lambda: merger).apply(ApplyRequest(text.encode(), edit, "a.py", **({"mode": "model"} | options)))


def test_only_the_region_is_put_before_the_model_and_all_else_stays(asking: Asking) -> None:
    engine, merger = asking(edited)
    result = applied(merger, LONG, CHANGE)
    assert (result.status, result.file.merged) == ("merged", LONG.replace(function(30), RIGHT))
    (prompt,) = engine.asked
    assert "def step_90" not in prompt
    assert result.file.scope == GivenScope("regions", ((178, 193),), 16, LONG.count("\n"))
    assert {"scope_ms", "prompt_ms", "prefill_ms", "decode_ms"} <= result.timings.keys()


def test_scope_file_gives_all_of_it(asking: Asking) -> None:
    engine, merger = asking(edited)
    result = applied(merger, LONG, CHANGE, scope="file")
    assert result.file.merged == LONG.replace(function(30), RIGHT)
    assert "def step_199" in engine.asked[0]
    num_lines = LONG.count("\n")
    assert result.file.scope == GivenScope("file", ((1, num_lines),), num_lines, num_lines)


def test_hunks_far_apart_are_asked_for_together_each_with_its_own_part(asking: Asking) -> None:
    engine, merger = asking(edited)
    result = applied(merger, LONG, TWO_CHANGES)
    above, below = engine.asked
    assert "value * 30\n=======" in below
    assert "value * 30\n=======" not in above
    assert "value * 11\n=======" in above
    assert result.status == "merged"
    assert result.file.merged == LONG.replace(function(30), RIGHT).replace("value * 11\n", "0\n")
    assert (result.usage.prompt, result.usage.forwards) == (20, 4)
    assert result.file.scope is not None
    assert len(result.file.scope.regions) == 2


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
@pytest.mark.parametrize("final", [True, False])
def test_the_files_line_endings_and_its_end_stay(asking: Asking, ending: str, final: bool) -> None:
    text = LONG if final else LONG.removesuffix("\n")
    original = ("\ufeff" + text.replace("\n", ending)).encode()
    _, merger = asking(edited)
    request = ApplyRequest(original, CHANGE, "a.py", mode="model")
    result = Applier(lambda: merger).apply(request)
    right = text.replace("total = value * 30\n", "total = 0\n").replace("\n", ending)
    assert result.file.data == ("\ufeff" + right).encode()


def test_an_answer_that_is_no_region_makes_a_short_file_be_asked_for_whole(asking: Asking) -> None:
    def answer(prompt: str) -> str:
        return edited(prompt) if "def step_49" in code_in(prompt) else RIGHT

    engine, merger = asking(answer)
    result = applied(merger, SHORT, CHANGE)
    assert SHORT.count("\n") <= MAX_LINES_AGAIN
    assert result.file.merged == SHORT.replace(function(30), RIGHT)
    assert len(engine.asked) == 2
    assert (result.usage.prompt, result.usage.completion) == (20, 10), "both are counted"
    assert result.file.scope is not None
    assert result.file.scope.kind == "file"


MARKER = "# ... existing code ...\n"
LAZY = MARKER + RIGHT + MARKER


@pytest.mark.parametrize("slip", ["    print(totl)\n", "    # ... existing code ...\n"])
def test_a_line_that_the_model_copied_wrong_gets_its_bytes_back(asking: Asking, slip: str) -> None:
    """So an answer must not end at such a line: what follows it is needed."""
    wrong = SHORT.replace(function(30), RIGHT).replace("    print(total)\n", slip, 1)
    _, merger = asking(lambda _: wrong)
    result = applied(merger, SHORT, LAZY, scope="file")
    assert (result.status, result.file.merged) == ("merged", SHORT.replace(function(30), RIGHT))
    assert result.file.repaired


def test_a_model_that_writes_for_too_long_is_stopped(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    engine, merger = asking(edited)
    monkeypatch.setattr(generate.time, "perf_counter", lambda: float(next(clock)))
    with pytest.raises(DeadlinePassed, match=r"for more than 0\.5 s; send a smaller"):
        applied(merger, LONG, TWO_CHANGES, max_write_seconds=0.5)
    assert all(stream.closed for stream in engine.streams)


def test_in_a_long_file_it_is_rejected_by_name(asking: Asking) -> None:
    engine, merger = asking(lambda _: RIGHT)
    result = applied(merger, LONG, CHANGE, policy="lenient")
    assert LONG.count("\n") > MAX_LINES_AGAIN
    assert result.status == "rejected"
    assert [check.name for check in result.file.checks if not check.ok][-1] == "region_kept"
    assert len(engine.asked) == 1


def test_a_file_of_which_only_a_region_is_given_may_be_longer_than_the_context(asking: Asking) -> None:
    _, merger = asking(edited)
    assert HUGE.count("\n") > 10_000
    assert applied(merger, HUGE, CHANGE).file.merged == HUGE.replace(function(30), RIGHT)
    with pytest.raises(TooLarge, match="context"):
        applied(merger, HUGE, CHANGE, scope="file")


def test_one_region_that_fails_takes_back_the_others(asking: Asking) -> None:
    engine, merger = asking(lambda prompt: engine_errors.QueueFull("full") if "value * 30\n" in prompt else "")
    with pytest.raises(Busy, match="full"):
        applied(merger, LONG, TWO_CHANGES)
    assert len(engine.streams) == 2
    assert all(stream.closed for stream in engine.streams)


def test_whoever_leaves_stops_all_regions(asking: Asking) -> None:
    engine, merger = asking(edited)
    context = RequestContext()
    merger.merge(task_of(LONG, TWO_CHANGES), context, NO_PROGRESS)
    for stream in engine.streams:
        stream.closed = False
    context.cancel.cancel()
    assert [stream.closed for stream in engine.streams] == [True, True]


def test_the_longest_answer_is_one_of_a_region(asking: Asking) -> None:
    engine, merger = asking(edited)
    applied(merger, LONG, TWO_CHANGES, max_tokens=77)
    applied(merger, LONG, TWO_CHANGES)
    assert engine.limits[:2] == [77, 77]
    assert all(limit < 700 for limit in engine.limits[2:])


def test_a_snippet_without_markers_is_shown_with_them_beside_a_region() -> None:
    (question,) = build_questions(task := task_of(LONG, RIGHT), find_scope(task))
    assert question.edit_text == f"# ... existing code ...\n{RIGHT}# ... existing code ..."


def first_ids(proposer: Proposer, count: int = 4000) -> Sequence[int]:
    return proposer.propose((), count).token_ids


def draft_text(task: ModelTask, text_side: TokenizerBundle) -> str:
    (question,) = build_questions(task, find_scope(task))
    prompt = build_prompt(
        text_side.template,
        text_side.tokenizer,
        file_text=question.file_text,
        edit_text=question.edit_text,
        instruction="",
    )
    table = text_side.tokenizer.token_bytes()
    ids = first_ids(build_draft(question, prompt, text_side.tokenizer, text_side))
    return b"".join(table[token] for token in ids).decode()


def test_the_draft_is_the_merge_by_rule_and_the_closing_tag(text_side: TokenizerBundle) -> None:
    drafted = draft_text(task_of(LONG, CHANGE), text_side)
    assert RIGHT in drafted
    assert drafted.endswith("    return total\n</updated-code>")


def test_a_prediction_is_cut_to_the_region() -> None:
    predicted = LONG.replace(function(30), RIGHT.replace("total = 0", "total = None")).replace("step_9(", "step_nine(")
    for sent in (predicted, "\ufeff" + predicted.replace("\n", "\r\n")):
        task = task_of(LONG, CHANGE, prediction=sent)
        (question,) = build_questions(task, find_scope(task))
        assert question.prediction == question.region.text.replace("total = value * 30", "total = None")


def test_a_prediction_that_has_nothing_of_the_file_harms_nothing(asking: Asking) -> None:
    for prediction in ("", "\n", "nothing\nof\nit", "x" * 10_000):
        _, merger = asking(edited)
        assert applied(merger, LONG, CHANGE, prediction=prediction).file.merged == LONG.replace(function(30), RIGHT)


def test_whatever_a_real_model_writes_nothing_outside_of_the_regions_changes(
    smollm2: RealModel, smollm2_decoder: Decoder, text_side: TokenizerBundle
) -> None:
    text = LONG.replace("\n", "\r\n")
    with Engine(smollm2_decoder, text_side.tokenizer.token_bytes(), EngineConfig(2048)) as engine:
        merger = ModelMerger(LoadedModel(smollm2.name, engine, text_side, 0.0, 0))
        request = ApplyRequest(text.encode(), TWO_CHANGES, "a.py", mode="model", max_tokens=24, temperature=1.0)
        file = Applier(lambda: merger).apply(request).file
    assert file.scope is not None
    assert len(file.scope.regions) == 2
    lines, merged = text.split("\r\n"), file.merged.split("\r\n")
    first, end = file.scope.regions[0][0] - 1, file.scope.regions[-1][1]
    assert merged[:first] == lines[:first]
    assert merged[len(merged) - len(lines) + end :] == lines[end:]


# FileEncoder: every text has the ids that it has alone, and the spans do not depend on what was indexed.


FILE = "".join(
    f"def step_{number}(value):\n    print({{'a': value}})\n    return value * {number}\n\n\n" for number in range(60)
)
STOP = "</updated-code>"
PIECES = st.text("ab_1 \n\t(){}'<>/=é\u3000", max_size=12)


def known(tokenizer: BPETokenizer, text: str) -> FileTokens:
    """What a watched folder knows of the file."""
    data = text.encode()
    (answer,) = TokenEncoder(tokenizer, None, 0).encode(
        [FileVersion("a.py", data, sha256(data).hexdigest())], in_bulk=False
    )
    assert answer.tokens is not None
    return answer.tokens


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("final", ["", "\n", ")\n", "\n\n", "  \n", ";\n"])
@settings(max_examples=15)
@given(place=st.integers(0, len(FILE)), length=st.integers(0, 300), new=PIECES)
def test_every_text_has_the_ids_that_it_has_alone(
    qwen05: RealModel, is_known: bool, final: str, place: int, length: int, new: str
) -> None:
    tokenizer, text = qwen05.tokenizer, FILE.rstrip("\n") + final
    encoder = FileEncoder(tokenizer, "a.py", text, known(tokenizer, text) if is_known else None)
    changed = text[:place] + new + text[place + length :]
    for near in (text, text.removesuffix("\n"), f"{text}\n{STOP}", changed, changed + STOP, new, ""):
        assert encoder.encode(near) == tokenizer.encode(near)
    assert encoder.encode_template("<|im_end|>\n") == tokenizer.encode_template("<|im_end|>\n")


@pytest.mark.parametrize("final", ["", "\n", ")\n", ";\n\n"])
def test_spans_end_where_those_of_the_whole_file_do(qwen05: RealModel, final: str) -> None:
    tokenizer, text = qwen05.tokenizer, FILE.rstrip("\n") + final
    of_file = cut_spans(
        encode_text(tokenizer, text.encode()), repo_syntax.find_language("a.py"), tokenizer.fingerprint
    ).spans.ends.tolist()
    asked = tokenizer.encode(text.removesuffix("\n"))
    for given_tokens in (None, known(tokenizer, text)):
        encoder = FileEncoder(tokenizer, "a.py", text, given_tokens)
        ends = encoder.find_span_ends(asked)
        assert ends[:-1] == of_file[: len(ends) - 1]
        assert len(of_file) - len(ends) <= 1
        assert ends[-1] == len(asked)
        assert all(first < second for first, second in pairwise([0, *ends]))
        assert len(ends) > 5


def test_the_spans_of_a_watched_file_are_taken_and_not_cut_again(qwen05: RealModel) -> None:
    tokens = known(qwen05.tokenizer, FILE)
    marked = FileTokens(tokens.content_hash, tokens.token_ids, lambda ids: pytest.fail("it has its spans"))
    spans = tokens.spans
    marked.set_spans(spans)
    assert (
        FileEncoder(qwen05.tokenizer, "a.py", FILE, marked).find_span_ends(tokens.token_ids.tolist())
        == spans.ends.tolist()
    )


def test_an_empty_file_has_no_spans(qwen05: RealModel) -> None:
    encoder = FileEncoder(qwen05.tokenizer, "a.py", "")
    assert encoder.find_span_ends([]) == []
    assert FileEncoder(qwen05.tokenizer, "a.py", "\n").find_span_ends([]) == []
    assert encoder.encode("x = 1") == qwen05.tokenizer.encode("x = 1")


def test_a_byte_that_the_vocabulary_lacks_is_refused(smollm2: RealModel) -> None:
    with pytest.raises(TokenizerError):
        FileEncoder(smollm2.tokenizer, "a.py", "a\x06b")
    with pytest.raises(TokenizerError):
        FileEncoder(smollm2.tokenizer, "a.py", "ab").encode("a\x06b")
