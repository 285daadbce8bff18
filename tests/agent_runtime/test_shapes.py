"""The JSON of answers and problems holds the names of the interface and comes back as the same value."""

from __future__ import annotations

import json

import pytest

from agent_runtime.errors import BadRequest, EditRefused, HunkError, ModelUnavailable, Stale, Unsupported
from agent_runtime.shapes import fault_of, problem_of, result_from_json, result_to_json
from agent_runtime.types import ApplyResult, FileResult, Usage
from editor.types import Check, Unresolved

RESULT = ApplyResult(
    "merged",
    FileResult("a.py", "x\n", "diff", "model", "model", 2, "model", (Check("no_op", True, ""),), "0" * 64, "1" * 64),
    Usage(prompt=8, cached=4, recomputed=4, completion=3, drafted=2, accepted=1, rejected=1, forwards=2),
    {"parse_ms": 1.0, "total_ms": 2.5},
)


def test_the_response_has_every_field_of_the_interface() -> None:
    answer = json.loads(json.dumps(result_to_json(RESULT)))
    names = "path merged diff method rung candidates certainty checks sha256_before sha256_after"
    file_fields = set(names.split())
    assert answer.keys() == {"status", "files", "usage", "timings", "sha256"} | file_fields
    assert answer["files"][0].keys() == file_fields
    assert {name: answer[name] for name in file_fields} == answer["files"][0]
    assert answer["sha256"] == answer["sha256_after"]
    usage_fields = "prompt cached reused_approximate recomputed completion drafted accepted rejected forwards"
    assert answer["usage"].keys() >= set(usage_fields.split())


def test_an_answer_comes_back_as_the_same_value_and_later_fields_are_passed_over() -> None:
    answer = json.loads(json.dumps(result_to_json(RESULT)))
    answer["usage"]["from_a_later_version"] = 1
    assert result_from_json(answer) == RESULT


@pytest.mark.parametrize(
    "fault",
    [
        Stale("changed", current_sha256="2" * 64),
        EditRefused("no", reasons=(Unresolved("ambiguous", "two places", 2, "near", "say which"),)),
        ModelUnavailable("loading"),
        Unsupported("not yet", field="files"),
        BadRequest("bad", field="edit"),
        HunkError("odd"),
    ],
)
def test_a_fault_comes_back_as_the_same_error(fault: HunkError) -> None:
    problem = json.loads(json.dumps(problem_of(fault)))
    assert problem["status"] == fault.http_status
    again = fault_of(problem)
    assert type(again) is type(fault)
    assert str(again) == str(fault)
    assert getattr(again, "reasons", None) == getattr(fault, "reasons", None)
    assert getattr(again, "current_sha256", None) == getattr(fault, "current_sha256", None)


def test_every_kind_of_fault_has_a_name_of_its_own() -> None:
    def below(cls: type[HunkError]) -> list[type[HunkError]]:
        return [cls, *(found for sub in cls.__subclasses__() for found in below(sub))]

    kinds = [cls.kind for cls in below(HunkError)]
    assert len(kinds) == len(set(kinds))
