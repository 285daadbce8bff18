"""Converts results and problems to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from agent_runtime.errors import BadRequest, EditRefused, HunkError, ModelUnavailable, Stale
from agent_runtime.types import (
    AnswerTrace,
    ApplyResult,
    FileResult,
    ForwardTrace,
    GivenScope,
    OutputRun,
    PromptRun,
    Reading,
    Reason,
    ScoredReading,
    SourceUsage,
    Usage,
)
from editor.types import Check, UnaccountedLine

PROBLEM_TYPE = "urn:hunk:problem:"
"""Prefix of the `type` of every problem; docs/api.md lists them."""


def result_to_json(result: ApplyResult) -> dict[str, Any]:
    """Return the apply response of docs/api.md. The fields of a single file also stand at the top level."""
    files = [asdict(file) for file in result.files]
    top = {**files[0], "sha256": files[0]["sha256_after"]} if len(files) == 1 else {}
    return {
        **top,
        "status": result.status,
        "written": result.written,
        "write_id": result.write_id,
        "files": files,
        "usage": asdict(result.usage),
        "timings": {name: round(value, 3) for name, value in result.timings.items()},
        "trace": None if result.trace is None else [_trace_to_json(answer) for answer in result.trace],
    }


def _trace_to_json(answer: AnswerTrace) -> dict[str, Any]:
    return {
        "path": answer.path,
        "region": answer.region,
        "purpose": answer.purpose,
        "prompt": [asdict(run) for run in answer.prompt],
        "completion": [
            {"text": run.text, "origin": run.origin, "pass": run.pass_number, "tokens": run.tokens}
            for run in answer.output
        ],
        "forwards": [asdict(each) for each in answer.forwards],
    }


def _trace_from_json(answer: Mapping[str, Any]) -> AnswerTrace:
    return AnswerTrace(
        path=answer["path"],
        region=answer["region"],
        purpose=answer["purpose"],
        prompt=tuple(PromptRun(**_select_known(PromptRun, run)) for run in answer["prompt"]),
        output=tuple(OutputRun(run["text"], run["origin"], run["pass"], run["tokens"]) for run in answer["completion"]),
        forwards=tuple(ForwardTrace(**_select_known(ForwardTrace, each)) for each in answer["forwards"]),
    )


def result_from_json(answer: Mapping[str, Any]) -> ApplyResult:
    """Parse a service's response; fields of a later version are ignored. Raises KeyError or TypeError."""
    files = tuple(_file_from_json(file) for file in answer["files"])
    trace = answer.get("trace")
    traced = None if trace is None else tuple(_trace_from_json(each) for each in trace)
    written = bool(answer.get("written", False))
    write_id = str(answer.get("write_id", ""))
    return ApplyResult(files, usage_from_json(answer["usage"]), dict(answer["timings"]), traced, written, write_id)


def usage_from_json(usage: Mapping[str, Any]) -> Usage:
    """Parse the `usage` of a response."""
    by_source = {
        source: SourceUsage(**_select_known(SourceUsage, each)) for source, each in usage.get("by_source", {}).items()
    }
    return Usage(**_select_known(Usage, usage) | {"by_source": by_source})


def _file_from_json(file: Mapping[str, Any]) -> FileResult:
    checks = tuple(_check_from_json(check) for check in file["checks"])
    scope = _scope_from_json(file["scope"]) if file.get("scope") else None
    readings = tuple(ScoredReading(**_select_known(ScoredReading, one)) for one in file.get("readings", ()))
    repaired = tuple(UnaccountedLine(**_select_known(UnaccountedLine, line)) for line in file.get("repaired", ()))
    known = _select_known(FileResult, file)
    return FileResult(**known | {"checks": checks, "scope": scope, "readings": readings, "repaired": repaired})


def _check_from_json(check: Mapping[str, Any]) -> Check:
    lines = tuple(UnaccountedLine(**_select_known(UnaccountedLine, line)) for line in check.get("lines", ()))
    return Check(**_select_known(Check, check) | {"lines": lines})


def _scope_from_json(scope: Mapping[str, Any]) -> GivenScope:
    regions = tuple((first, last) for first, last in scope["regions"])
    return GivenScope(**_select_known(GivenScope, scope) | {"regions": regions})


def reason_from_json(reason: Mapping[str, Any]) -> Reason:
    """Parse one reason of a refusal."""
    candidates = tuple(Reading(**_select_known(Reading, one)) for one in reason.get("candidates", ()))
    return Reason(**_select_known(Reason, reason) | {"candidates": candidates})


def problem_to_json(fault: HunkError) -> dict[str, Any]:
    """Return an error as RFC 9457 problem details, with the extension members of its class."""
    problem: dict[str, Any] = {
        "type": PROBLEM_TYPE + fault.kind,
        "title": (type(fault).__doc__ or "").split(";")[0].split("\n")[0].rstrip("."),
        "status": fault.http_status,
        "detail": str(fault),
    }
    if isinstance(fault, BadRequest) and fault.field:
        problem["field"] = fault.field
    if isinstance(fault, EditRefused | ModelUnavailable) and fault.reasons:
        problem["reasons"] = [asdict(reason) for reason in fault.reasons]
    if isinstance(fault, Stale):
        problem["current_sha256"] = fault.current_sha256
    if fault.retry_after_s is not None:
        problem["retry_after_s"] = fault.retry_after_s
    return problem


def problem_from_json(problem: Mapping[str, Any]) -> HunkError:
    """Return the error of a service's problem: the same class as in the service."""
    detail, kind = str(problem.get("detail", "")), str(problem.get("type", "")).removeprefix(PROBLEM_TYPE)
    if kind == Stale.kind:
        return Stale(detail, current_sha256=str(problem.get("current_sha256", "")))
    known = {fault.kind: fault for fault in _list_subclasses(HunkError)}
    fault = known.get(kind, HunkError)(detail or "the service answered with an unknown error")
    fault.retry_after_s = problem.get("retry_after_s")
    if isinstance(fault, BadRequest):
        fault.field = str(problem.get("field", ""))
    if isinstance(fault, EditRefused | ModelUnavailable):
        fault.reasons = tuple(reason_from_json(reason) for reason in problem.get("reasons", ()))
    return fault


def _select_known(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in values.items() if name in names}


def _list_subclasses(cls: type[HunkError]) -> list[type[HunkError]]:
    return [found for sub in cls.__subclasses__() for found in (sub, *_list_subclasses(sub))]
