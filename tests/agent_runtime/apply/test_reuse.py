"""What the engine is asked with each mode of reuse, and what becomes of an approximate answer that a check rejects."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import Unsupported
from agent_runtime.llm.interface import build_reuse, resolve_reuse_mode
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from agent_runtime.prompt.builder import ApplyPrompt
from agent_runtime.types import ApplyRequest, ApplyResult, Options, PatchRequest
from engine.reuse import EXACT, Match, plan_reuse
from engine.types import GenerationRequest
from repo_cache.token_encoder import FileVersion, TokenEncoder
from repo_cache.types import FileTokens
from tests.agent_runtime.fake_engine import Answer, FakeEngine
from tests.agent_runtime.scripted import ScriptedMerger
from tests.models import RealModel

FILE = "import os\n\n\n" + "\n\n".join(
    f"def step_{number}(value):\n    total = value * {number}\n    return total\n" for number in range(60)
)
EDIT = "<<<<<<< SEARCH\n    total = value * 30\n=======\n    total = 0\n>>>>>>> REPLACE\n"
RIGHT = FILE.replace("total = value * 30", "total = 0")
WRONG = RIGHT.replace("def step_7(", "def step_seven(")
PATCH = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-    total = value * 30\n+    total = 0\n"


@dataclass
class Known:
    """A folder of which the tokens of one text are known."""

    tokens_of: FileTokens
    asked: list[str] = field(default_factory=list)

    def find_tokens(self, path: str, text: str, root: str = "") -> FileTokens | None:
        self.asked.append(path)
        return self.tokens_of if sha256(text.encode()).hexdigest() == self.tokens_of.content_hash else None

    def close(self) -> None:
        self.asked.append("closed")


@pytest.fixture(scope="module")
def text_side(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    return metadata.to_bundle(tokenizer)


@pytest.fixture(scope="module")
def known(text_side: TokenizerBundle) -> FileTokens:
    content = FileVersion("a.py", FILE.encode(), sha256(FILE.encode()).hexdigest())
    (answer,) = TokenEncoder(text_side.tokenizer, None, 0).encode([content], in_bulk=False)
    assert answer.tokens is not None
    return answer.tokens


def merging(text_side: TokenizerBundle, answer: Answer, **options: Any) -> tuple[FakeEngine, ModelMerger]:
    engine = FakeEngine(answer, text_side)
    return engine, ModelMerger(LoadedModel("fake", engine, text_side, 0.0, 0), **options)  # type: ignore[arg-type]


def applied(merger: ModelMerger, edit: str = EDIT, **options: Any) -> ApplyResult:
    options = {"mode": "model", "scope": "file"} | options
    return Applier(lambda: merger).apply(ApplyRequest(FILE.encode(), edit, "a.py", **options))


def only(requests: list[GenerationRequest]) -> GenerationRequest:
    (request,) = requests
    return request


def test_the_mode_of_the_request_and_else_of_the_service_reaches_the_engine(text_side: TokenizerBundle) -> None:
    engine, merger = merging(text_side, lambda _: RIGHT, reuse="fast")
    results = [applied(merger, reuse=reuse, salt="tenant") for reuse in (None, "exact", "turbo")]
    assert [request.reuse.mode for request in engine.requests] == ["fast", "exact", "turbo"]
    assert engine.requests[1].reuse is EXACT
    assert len({request.prompt for request in engine.requests}) == 1, "the prompt is the same in all modes"
    assert {request.salt for request in engine.requests} == {"tenant"}
    assert [result.usage.reused_approximate for result in results] == [4, 0, 4]
    assert [result.usage.recomputed for result in results] == [6, 10, 6]
    assert results[0].usage.recomputed_by == {"asked": 5, "tail": 1}


def test_only_the_file_is_cut_into_segments_and_all_else_is_run(text_side: TokenizerBundle) -> None:
    engine, merger = merging(text_side, lambda _: RIGHT)
    applied(merger, reuse="fast")
    request = only(engine.requests)
    ids, reuse = request.prompt_ids, request.reuse
    ((zero, first), (end, behind)) = reuse.recompute
    decode = text_side.tokenizer.decode
    assert decode(ids[first:end]) == FILE.removesuffix("\n")
    assert (zero, behind) == (0, len(ids))
    assert decode(ids[:first]).endswith("<code>\n")
    assert decode(ids[end:]).startswith("\n</code>\n<update>\n<<<<<<< SEARCH")
    ends = list(reuse.segment_ends)
    assert {first, end} <= set(ends)
    assert ends[-1] == end, "the edit and the question are one segment, the last"
    assert sum(first < one < end for one in ends) > 5
    definitions = [decode(ids[start:stop]).lstrip("\n") for start, stop in pairwise(ends) if start >= first]
    assert all(text.startswith(("def ", "import")) for text in definitions), "spans begin with definitions"


@pytest.mark.parametrize("reuse", ["exact", "fast"])
def test_what_is_known_of_a_watched_file_changes_nothing_in_what_is_asked(
    text_side: TokenizerBundle, known: FileTokens, reuse: str
) -> None:
    engine, merger = merging(text_side, lambda _: RIGHT)
    applied(merger, reuse=reuse)
    files = Known(known)
    other_engine, other = merging(text_side, lambda _: RIGHT, files=files)
    applied(other, reuse=reuse)
    assert files.asked == ["a.py"]
    assert only(other_engine.requests) == only(engine.requests)


def test_regions_are_cut_too(text_side: TokenizerBundle) -> None:
    def answer(prompt: str) -> str:
        code = prompt.rpartition("<code>\n")[2].partition("\n</code>")[0] + "\n"
        return code.replace("total = value * 30", "total = 0")

    engine, merger = merging(text_side, answer)
    assert applied(merger, reuse="turbo", scope="auto").file.merged == RIGHT
    request = only(engine.requests)
    (_, first), (end, _) = request.reuse.recompute
    assert text_side.tokenizer.decode(request.prompt_ids[first:end]) in FILE
    assert end - first < 100
    assert request.reuse.segment_ends[-1] == end
    assert {first, end} <= set(request.reuse.segment_ends)


@pytest.mark.parametrize("asked", ["apply", "apply_patch"])
def test_an_approximate_answer_that_a_check_rejects_is_asked_for_again_exactly(
    text_side: TokenizerBundle, asked: str
) -> None:
    answers = iter([WRONG, RIGHT])
    engine, merger = merging(text_side, lambda _: next(answers))
    options: Any = {"mode": "model", "scope": "file", "reuse": "fast"}
    if asked == "apply":
        result = Applier(lambda: merger).apply(ApplyRequest(FILE.encode(), EDIT, "a.py", **options))
    else:
        result = Applier(lambda: merger).apply_patch(PatchRequest(PATCH, **options), {"a.py": FILE.encode()}.get)
    assert (result.status, result.file.merged) == ("merged", RIGHT)
    assert [request.reuse.mode for request in engine.requests] == ["fast", "exact"]
    usage = result.usage
    assert (usage.prompt, usage.reused_approximate, usage.recomputed) == (20, 4, 16), "both count"


def test_an_exact_answer_that_a_check_rejects_is_the_answer(text_side: TokenizerBundle) -> None:
    engine, merger = merging(text_side, lambda _: WRONG)
    assert applied(merger, reuse="exact").status == "rejected"
    assert len(engine.requests) == 1
    assert applied(merger, reuse="fast").status == "rejected"
    assert [request.reuse.mode for request in engine.requests[1:]] == ["fast", "exact"]


def test_what_the_policy_lets_pass_is_not_asked_for_again(text_side: TokenizerBundle) -> None:
    broken = FILE.replace("total = value * 30", "total = (0")
    engine, merger = merging(text_side, lambda _: broken)
    edit = "# ... existing code ...\ndef step_30(value):\n    total = (0\n    return total\n# ... existing code ...\n"
    assert applied(merger, edit, reuse="fast", policy="lenient").status == "merged"
    assert len(engine.requests) == 1
    assert applied(merger, edit, reuse="fast").status == "rejected"
    assert len(engine.requests) == 3


def test_readings_are_scored_exactly_and_for_their_tenant(text_side: TokenizerBundle) -> None:
    engine, merger = merging(text_side, lambda _: RIGHT, reuse="fast")
    snippet = "# ... existing code ...\n\ndef step_30(value):\n    return 0\n"
    applied(merger, snippet, mode="auto", decide="score", salt="tenant", policy="lenient")
    scored = [request for request in engine.requests if request.logprobs is not None]
    assert scored
    assert all(request.reuse is EXACT and request.salt == "tenant" for request in scored)


def test_closing_the_model_ends_the_watching(text_side: TokenizerBundle, known: FileTokens) -> None:
    files = Known(known)
    engine, merger = merging(text_side, lambda _: RIGHT, files=files)
    engine.close = lambda: None  # type: ignore[attr-defined]
    merger.close()
    assert files.asked == ["closed"]


# KV that an edit's prompt may reuse: only that of the file, in the mode of the request or of the service.


PROMPT = ApplyPrompt(tuple(range(100)), (), (), "", 20, file_at=(25, 80), segment_ends=(20, 25, 60, 80))


def test_the_request_decides_and_else_the_service() -> None:
    assert resolve_reuse_mode(None, "fast") == "fast"
    assert resolve_reuse_mode("exact", "fast") == "exact"
    assert resolve_reuse_mode("turbo", "exact") == "turbo"


def test_exact_asks_for_nothing() -> None:
    assert build_reuse(PROMPT, "exact") is EXACT


@pytest.mark.parametrize("mode", ["fast", "turbo"])
def test_whatever_is_stored_only_the_file_is_taken_over(mode: Any) -> None:
    reuse = build_reuse(PROMPT, mode)
    assert (reuse.mode, tuple(reuse.segment_ends)) == (mode, PROMPT.segment_ends)
    everything = [Match(0, np.arange(99), 0, 1)]
    plan = plan_reuse(100, 0, everything, reuse)
    assert [(each.start, each.end) for each in plan.placed] == [(25, 80)]


@pytest.mark.parametrize("mode", ["auto", "deterministic", "model"])
def test_balanced_is_refused_with_what_to_use(mode: Any) -> None:
    applier = Applier(lambda: ScriptedMerger("a = 2\n"))
    edit = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    for apply in (
        lambda: applier.apply(ApplyRequest(b"a = 1\n", edit, reuse="balanced", mode=mode)),
        lambda: applier.apply_patch(PatchRequest(edit, reuse="balanced", mode=mode), {"a.py": b"a = 1\n"}.get),
    ):
        with pytest.raises(Unsupported, match="for a single edit use 'exact', or 'fast'") as caught:
            apply()
        assert caught.value.field == "reuse"


def test_what_the_service_decides_is_never_sent() -> None:
    own = {"salt": "tenant", "root": "/srv/shop"}
    options = Options(reuse="fast", **own)
    assert options.options().items() >= own.items()
    assert options.to_request_options() == {name: value for name, value in options.options().items() if name not in own}
