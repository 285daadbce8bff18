"""The model chooses among the readings of an edit. Its scores are SmolLM2's; its preferences are scripted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import Cancelled, ModelUnavailable, TooLarge
from agent_runtime.llm import merger as merger_module
from agent_runtime.llm import scorer
from agent_runtime.llm.generate import RunResults
from agent_runtime.llm.interface import ModelChoice, ModelTask
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.llm.questions import find_scope
from agent_runtime.llm.scorer import (
    FEATURES,
    LEAST_LOGPROB,
    LEAST_WEIGHT,
    LOGPROB_WEIGHT,
    NUM_TOKENS_AFTER,
    AnswerScore,
    ReadingChoice,
    can_be_chosen,
    choose_reading,
    compute_features,
    compute_probabilities,
    count_common_prefix,
    find_divergence,
    find_valid_candidates,
    load_chooser,
    score_answers,
)
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import read_gguf_tokenizer
from agent_runtime.prompt.builder import ApplyPrompt
from agent_runtime.request_context import NO_PROGRESS, ProgressListener, RequestContext, Timings
from agent_runtime.serialization import result_from_json, result_to_json
from agent_runtime.types import ApplyRequest, ApplyResult
from benchmarks.train_chooser.train import UntrainedMerger
from editor.formats import parse
from editor.types import Candidate, Unresolved
from engine.contiguous_cache import CacheView
from engine.decoder import Batch, Decoder, StoreOps
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.layers import Adapter, AdapterRows
from engine.weights import LoraAdapter
from repo_cache.tokenizer import BPETokenizer
from tests.agent_runtime.models.test_load import write_output_adapter
from tests.models import RealModel
from tests.scripted_model import merge_of, scripted_engine

FILE = (
    "def area(r):\n    return 3.14 * r * r\n\n\ndef length(r):\n    return 6.28 * r\n\n\n"
    'def name():\n    return "circle"\n'
)
PART = "# circle.py\ndef area(r):\n    return 3.14159 * r * r\n"
"""The comment may be a line of the file, or say which file it is."""
PART_MERGED = FILE.replace("3.14 ", "3.14159 ")
NOTHING = AnswerScore()
"""The score of an answer in which nothing differs."""
COLOURED = FILE + "\n\ndef colour():\n    return 'red'\n"


@pytest.fixture(scope="module")
def loaded(smollm2: RealModel, smollm2_decoder: Decoder) -> Iterator[LoadedModel]:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    with Engine(smollm2_decoder, tokenizer.token_bytes(), 2048) as engine:
        yield LoadedModel(smollm2.name, engine, metadata.to_bundle(tokenizer), 0.0, 0)
        assert engine.stats().scheduler.num_running == 0


@pytest.fixture(scope="module")
def merger(loaded: LoadedModel) -> Iterator[ModelMerger]:
    lines = [merge_of(PART_MERGED, PART.strip()), merge_of(COLOURED, "def colour():")]
    with scripted_engine(lines, loaded.text, EngineConfig(2048)) as engine:
        yield ModelMerger(replace(loaded, engine=engine))


def prompt_of(token_ids: Sequence[int], file_ids: Sequence[int]) -> ApplyPrompt:
    return ApplyPrompt(tuple(token_ids), tuple(file_ids), (), stop="", num_shared=0)


def applied(merger: ModelMerger, edit: str) -> ApplyResult:
    request = ApplyRequest(original=FILE.encode(), edit=edit, path="circle.py", decide="score")
    return Applier(lambda: merger).apply(request)


def task_of(*candidates: Candidate) -> ModelTask:
    """An edit that adds a function, and what it is said to mean."""
    edit = "def area(r):\n    # ...\n\n\ndef colour():\n    return 'red'\n\n\n# ...\n"
    request = ApplyRequest(original=FILE.encode(), edit=edit, path="circle.py", decide="score")
    by_rule = Unresolved("open_intent", "unclear", len(candidates), candidates=candidates)
    return ModelTask(FILE, request, parse(edit, "lazy"), by_rule)


@torch.inference_mode()
def scored_slowly(
    model: Decoder, prompt: Sequence[int], answer: Sequence[int], adapter: Adapter | None = None
) -> tuple[list[float], list[bool]]:
    """The log-probability of each token, and whether it is the likeliest; `adapter` acts from the prompt's end on."""
    ids = [*prompt, *answer]
    batch = Batch.from_chunks(
        [(0, ids)],
        torch.device("cpu"),
        AdapterRows.from_sequences([(None, len(prompt) - 1), (adapter, len(answer) + 1)]),
    )
    view = CacheView(model.new_caches(1, len(ids)), 0, None, len(ids))
    hidden = model.run_layers(batch.token_ids, StoreOps(model, batch, view, model.scratch))
    scores = torch.log_softmax(model.logits(hidden[len(prompt) - 1 : -1]).double(), dim=-1)
    wanted = torch.tensor(answer)
    return scores[torch.arange(len(answer)), wanted].tolist(), (scores.argmax(dim=-1) == wanted).tolist()


def test_answers_are_scored_as_one_by_one_and_their_trunk_is_run_once(loaded: LoadedModel) -> None:
    tokenizer: BPETokenizer = loaded.text.tokenizer
    prompt = prompt_of(tokenizer.encode(f"{FILE}\nAgain:\n"), tokenizer.encode(FILE))
    texts = [FILE.replace("6.28", "6.283"), FILE.replace("def length(r):\n    return 6.28 * r\n\n\n", ""), FILE, FILE]
    answers = [tokenizer.encode(text) for text in texts]
    loaded.engine.forget_cached()
    run = RunResults()
    (scores,) = score_answers(loaded.engine, [prompt], [answers], RequestContext(), NO_PROGRESS, run)
    found = find_divergence(answers[:3], prompt.file_ids)
    assert found is not None
    assert len(found.prefix) > 5
    for answer, score in zip(answers, scores, strict=True):
        slow, likeliest = scored_slowly(loaded.engine.model, prompt.token_ids, answer)
        part = slice(len(found.prefix), len(found.prefix) + len(score.logprobs))
        assert list(score.logprobs) == pytest.approx(slow[part], abs=2e-3)
        assert score.is_likeliest == all(likeliest[part])
        assert len(score.logprobs) >= NUM_TOKENS_AFTER
    assert scores[2] == scores[3]
    assert len(run.results) == 3, "equal answers are run once"
    num_prompt = len(prompt.token_ids) + len(found.prefix)
    assert [result.usage.prompt - result.usage.cached for result in run.results] == [num_prompt, 1, 1]


def test_an_adapter_scores_answers_behind_a_prompt_that_the_bare_model_reads(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    engine, tokenizer = loaded.engine, loaded.text.tokenizer
    write_output_adapter(tmp_path)
    engine.load_adapter("tried", tmp_path)
    adapter = Adapter(LoraAdapter(tmp_path), engine.model.config, engine.model.weights.dtype, torch.device("cpu"))
    prompt = prompt_of(tokenizer.encode(f"{FILE}\nAgain:\n"), tokenizer.encode(FILE))
    answers = [tokenizer.encode(FILE.replace("6.28", "6.283")), tokenizer.encode(FILE)]
    engine.forget_cached()
    run = RunResults()
    scored = partial(score_answers, engine, [prompt], [answers], RequestContext(), NO_PROGRESS, run)
    (scores,) = scored(adapter="tried")
    found = find_divergence(answers, prompt.file_ids)
    assert found is not None
    for answer, score in zip(answers, scores, strict=True):
        part = slice(len(found.prefix), len(found.prefix) + len(score.logprobs))
        slow, _ = scored_slowly(engine.model, prompt.token_ids, answer, adapter)
        bare, _ = scored_slowly(engine.model, prompt.token_ids, answer)
        assert list(score.logprobs) == pytest.approx(slow[part], abs=5e-3)
        assert max(abs(own - other) for own, other in zip(slow[part], bare[part], strict=True)) > 0.1
    scored()
    num_prompt = len(prompt.token_ids) + len(found.prefix)
    computed = [result.usage.prompt - result.usage.cached for result in run.results]
    own = num_prompt - len(prompt.token_ids) + 1  # what the bare model has to read again
    assert computed == [num_prompt, 1, own, 1]


def test_only_readings_of_lazy_snippets_are_scored_with_the_adapter(loaded: LoadedModel, tmp_path: Path) -> None:
    write_output_adapter(tmp_path)
    loaded.engine.load_adapter("tried", tmp_path)
    strange = FILE.replace("3.14 ", "3.0 ")
    lazy = task_of(Candidate(strange, 0.6, "strange", 0.4), Candidate(COLOURED, 0.4, "right", 0.4))
    explicit = task_of(Candidate(strange, 0.6, "strange"), Candidate(COLOURED, 0.4, "right"))

    def score(task: ModelTask, adapter: str | None) -> list[float]:
        assert isinstance(task.by_rule, Unresolved)
        one = ModelMerger(replace(loaded, choosing_adapter=adapter))
        asked = (task, find_scope(task), task.by_rule.candidates[:1], RequestContext(), NO_PROGRESS, RunResults())
        ((found,),) = one.score_candidates(*asked, Timings(NO_PROGRESS.on_phase))
        return list(found.logprobs)

    assert score(explicit, "tried") == pytest.approx(score(explicit, None), abs=1e-3)
    assert score(lazy, None) == pytest.approx(score(explicit, None), abs=1e-3)
    assert score(lazy, "tried") != pytest.approx(score(lazy, None), abs=0.1)


def test_questions_without_a_difference_cost_nothing(loaded: LoadedModel) -> None:
    prompt = prompt_of((1, 2, 3), (5, 6))
    run = RunResults()
    assert score_answers(loaded.engine, [prompt], [[[5, 6], [5, 6]]], RequestContext(), NO_PROGRESS, run) == [[NOTHING]]
    assert run.results == []


def test_the_reading_that_the_model_would_write_is_taken_byte_for_byte(merger: ModelMerger) -> None:
    result = applied(merger, PART)
    file = result.file
    assert file.merged == PART_MERGED
    assert (result.status, file.method, file.certainty) == ("merged", "model", "scored")
    assert file.confidence == file.readings[0].score == load_chooser().written
    assert file.readings[0].why == "1 changed from line 2 on"
    assert -1.0 < file.readings[0].logprob < 0.0
    assert file.scope is not None
    assert result.usage.drafted == 0 < result.usage.completion
    assert result.timings["score_ms"] > 0
    assert "decode_ms" not in result.timings
    assert result_from_json(result_to_json(result)).files == result.files


def test_the_model_overrules_the_rules_where_they_are_not_sure(merger: ModelMerger) -> None:
    strange = FILE.replace("def length", "def colour():\n    return 'red'\n\n\ndef length")
    choice = merger.choose(
        task_of(Candidate(strange, 0.6, "strange"), Candidate(COLOURED, 0.4, "right")), RequestContext(), NO_PROGRESS
    )
    assert isinstance(choice, ModelChoice)
    assert choice.number == 1
    assert [reading.why for reading in choice.readings] == ["strange", "right"]
    assert choice.usage.cached >= choice.usage.prompt // 2 - 20, "the second found the first one's prompt"


def test_what_a_check_rejects_is_not_offered(merger: ModelMerger) -> None:
    without = FILE.replace("6.28", "6.3")  # the edit's lines are not in it
    task = task_of(Candidate(without, 0.9, "without"), Candidate(COLOURED, 0.1, "right"))
    assert find_valid_candidates(task, find_scope(task)) == [1]
    choice = merger.choose(task, RequestContext(), NO_PROGRESS)
    assert isinstance(choice, ModelChoice)
    assert choice.number == 1
    assert len(choice.readings) == 1


def test_no_more_than_the_first_few_are_scored(merger: ModelMerger, monkeypatch: pytest.MonkeyPatch) -> None:
    colour = "def colour():\n    return 'red'\n"
    places = [FILE.replace(f"def {name}", f"{colour}\n\ndef {name}") for name in ("length", "name")]
    task = task_of(*(Candidate(text, 0.3, str(number)) for number, text in enumerate([places[0], COLOURED, places[1]])))
    assert find_valid_candidates(task, find_scope(task)) == [0, 1, 2]
    monkeypatch.setattr(merger_module, "MAX_SCORED", 2)
    choice = merger.choose(task, RequestContext(), NO_PROGRESS)
    assert isinstance(choice, ModelChoice)
    assert [reading.why for reading in choice.readings] == ["0", "1"]


def test_the_others_are_not_scored_where_the_model_would_write_the_first(merger: ModelMerger) -> None:
    strange = FILE.replace("def length", "def colour():\n    return 'red'\n\n\ndef length")
    right, other = Candidate(COLOURED, 0.5, "right"), Candidate(strange, 0.5, "strange")
    for candidates_, scored in (((right, other), ["right"]), ((other, right), ["strange", "right"])):
        choice = merger.choose(task_of(*candidates_), RequestContext(), NO_PROGRESS)
        assert isinstance(choice, ModelChoice)
        assert choice.number == candidates_.index(right)
        assert [reading.why for reading in choice.readings] == scored
        assert choice.confidence is not None
        assert (choice.confidence == 0.5) == (len(scored) == 1), "what was not scored counts"


def test_without_the_trained_weights_the_fixed_ones_choose(
    merger: ModelMerger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`benchmarks.apply --chooser untrained`: no bar of the trained weights keeps it from a choice."""
    doubtful = replace(load_chooser(), bar=2.0)
    monkeypatch.setattr(scorer, "load_chooser", lambda: doubtful)
    strange = FILE.replace("def length", "def colour():\n    return 'red'\n\n\ndef length")
    task = task_of(Candidate(strange, 0.6, "strange", 0.4), Candidate(COLOURED, 0.4, "right", 0.4))
    for one, number in ((merger, None), (UntrainedMerger(merger._loaded), 1)):
        choice = one.choose(task, RequestContext(), NO_PROGRESS)
        assert (choice.number if isinstance(choice, ModelChoice) else None) == number


def test_in_doubt_the_model_writes_the_merge_and_all_is_counted(
    merger: ModelMerger, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubtful = replace(load_chooser(), bar=2.0)
    monkeypatch.setattr(scorer, "load_chooser", lambda: doubtful)
    monkeypatch.setattr(scorer, "_build_score", lambda given: unsure(*(each.logprob for each in given)))
    result = applied(merger, PART)
    assert result.file.certainty == "model"
    assert "3.14159" in result.file.merged
    assert result.file.readings, "which it was in doubt about"
    assert {"score_ms", "decode_ms"} <= result.timings.keys()
    assert result.usage.drafted > 0
    assert result.usage.completion > result.usage.drafted - result.usage.rejected


def test_in_doubt_a_model_that_may_not_write_is_not_asked_to(
    merger: ModelMerger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merger, "merge", lambda *arguments: pytest.fail("it was asked to write"))
    task = task_of(Candidate(COLOURED, 0.6, "right"))
    held = replace(task, request=replace(task.request, min_certainty="scored"))
    choice = merger.choose(held, RequestContext(), NO_PROGRESS)
    assert isinstance(choice, ModelChoice)
    assert choice.number == 0
    monkeypatch.setattr(scorer, "LEAST_LOGPROB", 0.0)
    monkeypatch.setattr(scorer, "_build_score", lambda given: unsure(*(each.logprob for each in given)))
    doubt = merger.choose(held, RequestContext(), NO_PROGRESS)
    assert isinstance(doubt, ModelChoice)
    assert (doubt.number, len(doubt.readings)) == (None, 1)
    assert "decode_ms" not in doubt.timings
    marked = Unresolved("open_intent", "", 1, candidates=(Candidate(FILE + "\n# ... existing code ...\n", 1.0, ""),))
    nothing = merger.choose(replace(held, by_rule=marked), RequestContext(), NO_PROGRESS)
    assert isinstance(nothing, ModelChoice)
    assert (nothing.number, nothing.readings) == (None, ())


def test_without_a_reading_the_model_writes_the_merge(merger: ModelMerger) -> None:
    marked = FILE + "\n# ... existing code ...\ndef colour():\n    return 'red'\n"
    made = merger.choose(
        replace(
            task_of(Candidate(marked, 1.0, "a marker is left")),
        ),
        RequestContext(),
        NO_PROGRESS,
    )
    assert not isinstance(made, ModelChoice)
    assert made.readings == ()


def test_a_choice_can_be_taken_back(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the first chunk of its prompt, whoever asked leaves."""
    loaded.engine.forget_cached()
    left, forward = Event(), loaded.engine.model.forward_batch

    def wait_and_forward(*arguments: Any) -> Tensor:
        assert left.wait(60)
        return forward(*arguments)

    context = RequestContext()

    class Leaving(ProgressListener):
        def on_start(self) -> None:
            context.cancel.cancel()
            left.set()

    monkeypatch.setattr(loaded.engine.model, "forward_batch", wait_and_forward)
    with pytest.raises(Cancelled):
        ModelMerger(loaded).choose(task_of(Candidate(COLOURED, 1.0, "right")), context, Leaving())


def test_what_goes_wrong_has_the_names_that_a_merge_gives_it(loaded: LoadedModel) -> None:
    with Engine(loaded.engine.model, loaded.text.tokenizer.token_bytes(), 64) as engine:
        small = ModelMerger(replace(loaded, engine=engine))
        with pytest.raises(TooLarge):
            applied(small, PART)
    with pytest.raises(ModelUnavailable):
        applied(small, PART)


# Token ids in which the readings of an edit differ.


DIVERGENCE_FILE = list(range(100, 160))
END = [1, 2]
"""The closing tag."""


def test_a_deletion_shows_in_what_comes_instead() -> None:
    kept, deleted = DIVERGENCE_FILE[:30] + DIVERGENCE_FILE[32:] + END, DIVERGENCE_FILE[:30] + DIVERGENCE_FILE[40:] + END
    found = find_divergence([kept, deleted], DIVERGENCE_FILE + END)
    assert found is not None
    assert found.prefix == DIVERGENCE_FILE[:30]
    assert found.parts == (DIVERGENCE_FILE[32:48], DIVERGENCE_FILE[40:48])


def test_a_single_answer_is_told_from_the_file() -> None:
    found = find_divergence([[*DIVERGENCE_FILE[:10], 7, *DIVERGENCE_FILE[10:], *END]], DIVERGENCE_FILE + END)
    assert found is not None
    assert found.prefix == DIVERGENCE_FILE[:10]
    assert found.parts == ([7, *DIVERGENCE_FILE[10 : 10 + NUM_TOKENS_AFTER]],)


def test_nothing_tells_what_is_equal_apart() -> None:
    assert find_divergence([DIVERGENCE_FILE, DIVERGENCE_FILE], DIVERGENCE_FILE) is None


def test_parts_end_with_their_answers() -> None:
    found = find_divergence([[5, 6, *END], [5, *END]], [9, *END])
    assert found is not None
    assert (found.prefix, found.parts) == ([], ([5, 6, *END], [5, *END]))


def test_overlapping_repeats_are_parted_once() -> None:
    """The common end must not reach into the common beginning: a line was added to a run of equal ones."""
    found = find_divergence([[3, 3, 3, *END]], [3, 3, *END])
    assert found is not None
    assert (found.prefix, found.parts) == ([3, 3], ([3, *END],))


texts = st.lists(st.integers(0, 3), max_size=40).map(lambda ids: [*ids, *END])


@example([[1, 2]], [1, 2, 1, 2])
@given(st.lists(texts, min_size=1, max_size=4), texts)
def test_every_part_belongs_to_its_answer_and_is_not_empty(answers: list[list[int]], unchanged: list[int]) -> None:
    found = find_divergence(answers, unchanged)
    if found is None:
        assert all(answer == unchanged for answer in answers)
        return
    behind = []
    for answer, part in zip(answers, found.parts, strict=True):
        assert part
        assert answer[: len(found.prefix) + len(part)] == [*found.prefix, *part]
        behind.append(answer[len(found.prefix) + len(part) :])
    assert all(rest in (unchanged[len(unchanged) - len(rest) :], []) for rest in behind), "what is left tells nothing"
    num_common, shortest = count_common_prefix([*answers, unchanged]), min(map(len, [*answers, unchanged]))
    assert len(found.prefix) == min(num_common, shortest - 1), "as long as it can be"


@given(st.lists(texts, min_size=2, max_size=4, unique_by=tuple))
def test_different_answers_have_different_parts(answers: list[list[int]]) -> None:
    found = find_divergence(answers, answers[0])
    assert found is not None
    assert len({tuple(part) for part in found.parts}) == len(answers)


# Scores of readings from the rules and the model, and when none is chosen.


def unsure(*logprobs: float) -> AnswerScore:
    """An answer that the model would not write."""
    return AnswerScore(logprobs, is_likeliest=False)


LIKELY, UNLIKELY = unsure(*(-0.01,) * 5), unsure(-0.01, -9.0, -0.01)
WRITTEN = AnswerScore((-0.9,))


def candidates(*scores: float, confidences: Sequence[float | None] = ()) -> list[Candidate]:
    sure = [*confidences, *[None] * (len(scores) - len(confidences))]
    return [
        Candidate(f"text {number}", score, f"reading {number}", confidence)
        for number, (score, confidence) in enumerate(zip(scores, sure, strict=True))
    ]


def pick(given: Sequence[Candidate], scores: Sequence[Sequence[AnswerScore]]) -> int | None:
    return choose_reading(given, scores).number


def test_without_confidences_a_share_is_the_rules_score_times_the_models_probability() -> None:
    choice = choose_reading(candidates(0.6, 0.4), [[unsure(-1.0, -2.0), unsure(-0.5)]])
    first, second = 0.6 * math.exp(LOGPROB_WEIGHT * -3.0), 0.4 * math.exp(LOGPROB_WEIGHT * -0.5)
    readings = choice.readings
    assert [each.score for each in readings] == pytest.approx([first / (first + second), second / (first + second)])
    assert [each.logprob for each in readings] == [-1.5, -0.5]
    assert [each.least_logprob for each in readings] == [-2.0, -0.5]
    assert [each.why for each in readings] == ["reading 0", "reading 1"]


@pytest.mark.parametrize("confidences", [(), (0.5, 0.3)])
def test_several_regions_add_up(confidences: tuple[float, ...]) -> None:
    given = candidates(0.5, 0.5, confidences=confidences)
    apart = choose_reading(given, [[unsure(-1.0), unsure(-2.0)], [NOTHING] * 2, [unsure(-3.0), unsure(-0.1)]])
    together = choose_reading(given, [[unsure(-1.0, -3.0), unsure(-2.0, -0.1)]])
    assert apart == together


@pytest.mark.parametrize("confidences", [(), (0.5, 0.3)])
def test_one_unlikely_token_is_not_lost_among_many_likely_ones(confidences: tuple[float, ...]) -> None:
    """The first drops lines at one token and copies 400 others; the mean of its tokens is the better one."""
    given = candidates(0.5, 0.5, confidences=confidences and (0.45, 0.45))
    dropped, kept = choose_reading(given, [[unsure(-6.0, *(-0.001,) * 400), unsure(*(-0.02,) * 20)]]).readings
    assert kept.logprob < dropped.logprob
    assert kept.score > dropped.score


def test_the_model_can_overrule_the_rules() -> None:
    assert pick(candidates(0.66, 0.34), [[UNLIKELY, LIKELY]]) == 1


def test_the_rules_can_overrule_a_model_that_is_not_sure() -> None:
    assert pick(candidates(0.95, 0.05), [[unsure(-1.5), unsure(-0.9)]]) == 0


def test_two_that_are_nearly_as_good_are_both_in_doubt() -> None:
    assert pick(candidates(0.5, 0.5), [[LIKELY, LIKELY]]) is None
    assert pick(candidates(0.5, 0.5, confidences=(0.49, 0.49)), [[LIKELY, LIKELY]]) is None


def test_what_the_model_would_not_write_is_in_doubt_be_it_the_only_reading() -> None:
    assert pick(candidates(1.0), [[UNLIKELY]]) is None
    assert pick(candidates(1.0), [[LIKELY]]) == 0
    assert pick(candidates(1.0), [[NOTHING]]) == 0, "nothing differs, nothing is unlikely"
    assert pick(candidates(1.0, confidences=(0.6,)), [[UNLIKELY]]) is None


def test_the_first_reading_is_taken_if_the_model_would_write_it_and_the_others_count() -> None:
    alone = choose_reading(candidates(0.4, 0.6), [[WRITTEN]])
    assert (alone.number, alone.confidence, len(alone.readings)) == (0, 0.4, 1)
    sure = choose_reading(candidates(0.4, 0.6, confidences=(0.3, 0.3)), [[WRITTEN], [NOTHING]])
    assert (sure.number, sure.confidence) == (0, load_chooser().written)
    assert pick(candidates(0.5, 0.5), [[WRITTEN, LIKELY], [LIKELY, LIKELY]]) is None, "not in every region"


def test_another_reading_that_the_model_would_write_is_judged_like_all() -> None:
    """Of 29 training snippets of which it would write a later reading only, that reading is right in 11."""
    given = candidates(0.6, 0.4, confidences=(0.7, 0.1))
    assert pick(given, [[unsure(-3.0, -0.5), AnswerScore((-0.9, -0.9))]]) is None


def test_the_borders_are_where_they_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(share: float, least: float) -> int | None:
        monkeypatch.setattr(scorer, "_weigh", lambda *_: [share])
        return pick(candidates(1.0), [[unsure(-0.1, least)]])

    assert judge(LEAST_WEIGHT, LEAST_LOGPROB) == 0
    assert judge(LEAST_WEIGHT - 1e-6, LEAST_LOGPROB) is None
    assert judge(LEAST_WEIGHT, LEAST_LOGPROB - 1e-6) is None

    def judge_trained(share: float) -> ReadingChoice:
        monkeypatch.setattr(scorer, "compute_probabilities", lambda *_: [share])
        return choose_reading(candidates(1.0, confidences=(0.5,)), [[unsure(-0.1)]])

    bar = load_chooser().bar
    assert (judge_trained(bar).number, judge_trained(bar).confidence) == (0, bar)
    assert (judge_trained(bar - 1e-6).number, judge_trained(bar - 1e-6).confidence) == (None, None)


def test_hopeless_readings_do_not_underflow() -> None:
    choice = choose_reading(candidates(0.5, 0.5), [[unsure(-5000.0), unsure(-9000.0)]])
    assert [each.score for each in choice.readings] == [1.0, 0.0]
    trained = choose_reading(candidates(0.5, 0.5, confidences=(0.5, 0.4)), [[unsure(-5000.0), unsure(-9000.0)]])
    assert all(0.0 <= each.score < 1.0 for each in trained.readings)


def test_weights_reward_likely_tokens() -> None:
    """The bound of a probability stands on it."""
    weights = dict(zip(FEATURES, load_chooser().weights, strict=True))
    assert min(weights["least"], weights["margin"]) > 0


_LOGPROBS = st.lists(st.one_of(st.floats(-20, 0), st.floats(-0.1, 0)), min_size=1, max_size=6)


@given(
    st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 1.0), _LOGPROBS), min_size=1, max_size=4),
    st.integers(1, 3),
)
@example([(0.9, 0.99, [-0.1]), (0.05, 0.01, [-3.0])], 1)
def test_where_the_first_reading_rules_a_choice_out_all_of_them_would(
    found: list[tuple[float, float, list[float]]], num_questions: int
) -> None:
    given_ = candidates(*(score for score, _, _ in found), confidences=[sure for _, sure, _ in found])
    scores = [[unsure(*each) for _, _, each in found]] * num_questions
    whole = choose_reading(given_, scores)
    firsts = [question[0] for question in scores]
    if not can_be_chosen(given_, firsts):
        assert whole.number is None
    if len(given_) > 1:
        cut = choose_reading(given_, [[each] for each in firsts])
        assert (cut.number, cut.confidence, len(cut.readings)) == (None, None, 1)
        assert cut.readings[0].score >= whole.readings[0].score - 1e-9


def test_a_choice_that_the_first_reading_rules_out_costs_no_more_passes(merger: ModelMerger) -> None:
    strange = FILE.replace("def length", "def colour():\n    return 'red'\n\n\ndef length")
    doubtful = [Candidate(strange, 0.5, "strange", 0.02), Candidate(COLOURED, 0.5, "right", 0.02)]
    task = task_of(*doubtful)
    held = replace(task, request=replace(task.request, min_certainty="scored"))
    choice = merger.choose(held, RequestContext(), NO_PROGRESS)
    assert isinstance(choice, ModelChoice)
    assert choice.number is None
    assert [reading.why for reading in choice.readings] == ["strange"]


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 1.0), st.floats(-50, 0)), min_size=1, max_size=4))
def test_probabilities_are_the_softmax_over_all_readings_and_none(found: list[tuple[float, float, float]]) -> None:
    chooser = load_chooser()
    given = candidates(*(score for score, _, _ in found), confidences=[sure for _, sure, _ in found])
    sums = [total for _, _, total in found]
    features = compute_features(given, sums, sums)
    slow = np.exp([*(np.array(features) @ np.array(chooser.weights)), chooser.none])
    assert compute_probabilities(features, chooser) == pytest.approx((slow / slow.sum())[:-1].tolist())
    assert len(FEATURES) == len(features[0])
