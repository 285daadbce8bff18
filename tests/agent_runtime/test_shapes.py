"""The JSON of answers and problems holds the names of the interface and comes back as the same value."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent_runtime.errors import BadRequest, EditRefused, HunkError, ModelUnavailable, Stale, Unsupported
from agent_runtime.serialization import problem_from_json, problem_to_json, result_from_json, result_to_json
from agent_runtime.types import ApplyResult, FileResult, Reading, Reason, SourceUsage, Usage, sum_usage
from editor.types import Check

FILE = FileResult(
    "a.py", "merged", "x\n", "diff", "model", "model", 2, "model", (Check("no_op", True, ""),), "0" * 64, "1" * 64
)
RESULT = ApplyResult(
    (FILE,),
    Usage(
        prompt=8,
        cached=3,
        reused_approximate=2,
        recomputed=3,
        completion=3,
        drafted=2,
        accepted=1,
        rejected=1,
        forwards=2,
        prefill_forwards=1,
        near_ties=1,
        prefix_hit_rate=0.375,
        by_source={"merge": SourceUsage(2, 1, 1, 1)},
        recomputed_by={"asked": 2, "tail": 1},
    ),
    {"parse_ms": 1.0, "total_ms": 2.5},
)


REASON = Reason(
    "ambiguous", "two places", 2, "near", "say which", (Reading(0.5, "at line 3", "@@ -1 +1 @@\n-a\n+b"),), "a.py"
)


def not_loaded() -> ModelUnavailable:
    """A model that is missing where no rule decides."""
    fault = ModelUnavailable("not pulled")
    fault.reasons = (REASON,)
    return fault


def test_the_response_has_every_field_of_the_interface() -> None:
    answer = json.loads(json.dumps(result_to_json(RESULT)))
    names = "path merged diff method rung candidates certainty checks sha256_before sha256_after"
    file_fields = set(names.split())
    assert answer.keys() >= {"status", "files", "usage", "timings", "sha256"} | file_fields
    assert answer["files"][0].keys() >= file_fields
    assert {name: answer[name] for name in answer["files"][0]} == answer["files"][0]
    assert answer["sha256"] == answer["sha256_after"]
    usage_fields = "prompt cached reused_approximate recomputed completion drafted accepted rejected forwards"
    assert answer["usage"].keys() >= {*usage_fields.split(), "prefill_forwards"}
    assert answer["usage"]["by_source"] == {"merge": {"drafted": 2, "accepted": 1, "rejected": 1, "forwards": 1}}
    assert answer["usage"]["recomputed_by"] == {"asked": 2, "tail": 1}


def test_usages_add_up_source_by_source() -> None:
    second = Usage(
        prompt=2,
        recomputed=2,
        recomputed_by={"tail": 1, "changed": 1},
        forwards=3,
        prefill_forwards=2,
        by_source={"output": SourceUsage(3, 3, 0, 1), "merge": SourceUsage(4, 0, 4, 2)},
    )
    total = sum_usage([RESULT.usage, second, Usage()])
    assert (total.prompt, total.cached, total.forwards, total.prefill_forwards) == (10, 3, 5, 3)
    assert (total.reused_approximate, total.recomputed) == (2, 5)
    assert total.recomputed_by == {"asked": 2, "tail": 2, "changed": 1}
    assert total.prefix_hit_rate == 0.3
    assert total.by_source == {"merge": SourceUsage(6, 1, 5, 3), "output": SourceUsage(3, 3, 0, 1)}
    assert sum_usage([]) == Usage()


def test_several_files_stand_only_in_the_list_and_have_one_status_together() -> None:
    done = replace(FILE, path="b.py", status="noop")
    both = ApplyResult((FILE, done), Usage())
    answer = json.loads(json.dumps(result_to_json(both)))
    assert answer.keys() == {"status", "written", "write_id", "files", "usage", "timings", "trace"}
    assert [file["path"] for file in answer["files"]] == ["a.py", "b.py"]
    assert result_from_json(answer) == both
    assert both.status == "merged"
    assert ApplyResult((done, done), Usage()).status == "noop"
    assert ApplyResult((FILE, done, replace(FILE, status="rejected")), Usage()).status == "rejected"


def test_an_answer_comes_back_as_the_same_value_and_later_fields_are_passed_over() -> None:
    answer = json.loads(json.dumps(result_to_json(RESULT)))
    answer["usage"]["from_a_later_version"] = 1
    assert result_from_json(answer) == RESULT


@pytest.mark.parametrize(
    "fault",
    [
        Stale("changed", current_sha256="2" * 64),
        EditRefused("no", reasons=(REASON,)),
        ModelUnavailable("loading"),
        not_loaded(),
        Unsupported("not yet", field="files"),
        BadRequest("bad", field="edit"),
        HunkError("odd"),
    ],
)
def test_a_fault_comes_back_as_the_same_error(fault: HunkError) -> None:
    problem = json.loads(json.dumps(problem_to_json(fault)))
    assert problem["status"] == fault.http_status
    again = problem_from_json(problem)
    assert type(again) is type(fault)
    assert str(again) == str(fault)
    assert getattr(again, "reasons", None) == getattr(fault, "reasons", None)
    assert getattr(again, "current_sha256", None) == getattr(fault, "current_sha256", None)


def test_every_kind_of_fault_has_a_name_of_its_own() -> None:
    def below(cls: type[HunkError]) -> list[type[HunkError]]:
        return [cls, *(found for sub in cls.__subclasses__() for found in below(sub))]

    kinds = [cls.kind for cls in below(HunkError)]
    assert len(kinds) == len(set(kinds))
