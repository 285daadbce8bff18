"""The log: a line a request, nothing of what was sent in it, and no request that waits for whoever reads it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.telemetry.log import JsonLines, LineWriter, TextLines, configure_logging
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import post, serving
from tests.security.guarded import guarded

FILE = "launch_code = 1234\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\nlaunch_code = 1234\n=======\nlaunch_code = 4321\n>>>>>>> REPLACE\n"


@contextmanager
def logging_to(stream: io.StringIO, log_format: str, level: str = "info") -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("hunk")
    before, levels = root.handlers[:], (root.level, ours.level)
    writer = configure_logging(log_format, level, stream)  # type: ignore[arg-type]
    try:
        yield
    finally:
        writer.finish(timeout_s=10)
        root.handlers[:] = before
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


def test_a_request_is_one_json_line_and_nothing_of_what_was_sent_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "secret_plans.py").write_text(FILE)
    stream = io.StringIO()
    with logging_to(stream, "json"), serving(ScriptedMerger(FILE.replace("1", "3")), tmp_path) as url:
        asked = {"path": "secret_plans.py", "edit": BLOCK, "instruction": "hush"}
        post(url, asked, **{"X-Request-Id": "trace-me", "Authorization": "Bearer hunk_abc"})
        post(url, {"original": FILE, "edit": BLOCK, "mode": "model"})
        post(url, {"original": FILE, "edit": BLOCK.replace("launch", "lunch"), "mode": "deterministic"})
        httpx.get(f"{url}/nowhere?token=hunk_abc")
        httpx.get(f"{url}/healthz")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["route"], line["status"]) for line in lines] == [
        ("/apply", 200), ("/apply", 200), ("/apply", 422), ("(none)", 404)
    ]  # fmt: skip
    first, by_model, refused, _ = lines
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert (first["level"], first["request_id"], first["tenant"]) == ("info", "trace-me", "local")
    assert first["ms"] > 0
    assert first["outcome"] == "merged"
    assert "prompt_tokens" not in first
    assert (by_model["prompt_tokens"], by_model["completion_tokens"]) == (10, 5)
    assert refused["outcome"] == "edit-refused"
    for secret in ("launch", "1234", "4321", "hush", "hunk_abc", "secret_plans", "nowhere", "a = "):
        assert secret not in stream.getvalue()


def test_wrong_tokens_are_in_the_log_wherever_they_are_tried_and_methods_are_cut(tmp_path: Path) -> None:
    stream = io.StringIO()
    with logging_to(stream, "json"), guarded(tmp_path, wanted={"one": ("acme", ("read",))}) as service:
        for path in ("/stats", "/metrics"):
            service.ask("GET", path, "one")
            service.ask("GET", path, headers={"authorization": "Bearer hunk_nonsense"})
        service.ask("M" * 2000, "/apply", "one")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["method"], line["status"]) for line in lines] == [("GET", 401), ("GET", 401), ("M" * 16, 405)]


def test_a_terminal_gets_key_and_value() -> None:
    stream = io.StringIO()
    with logging_to(stream, "text", "debug"), serving(None) as url:
        httpx.get(f"{url}/healthz")
    assert re.search(
        r"^\S+Z debug   request request_id=\w+ tenant=local method=GET route=/healthz status=200 ms=[\d.]+$",
        stream.getvalue(),
        re.MULTILINE,
    )


def test_a_bug_is_logged_with_its_place_and_without_its_message() -> None:
    stream = io.StringIO()
    with logging_to(stream, "json"):
        try:
            {}["a line of somebody's source"]
        except KeyError:
            logging.getLogger("others").exception("Exception in ASGI application")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["error"]) == ("error", "others", "KeyError")
    assert line["stack"][-1].split(":")[0].endswith("test_logs.py")
    assert "somebody" not in stream.getvalue()


@given(st.text(), st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(), max_size=3))
def test_an_event_is_one_line_whatever_it_holds(message: str, fields: dict[str, str]) -> None:
    record = logging.LogRecord("hunk.x", logging.INFO, "", 0, "%s", (message,), None)
    record.fields = fields
    for formatter in (JsonLines(), TextLines()):
        assert not re.search(r"[\n\r\x85\u2028\u2029]", formatter.format(record)) or isinstance(formatter, JsonLines)
        assert "\n" not in formatter.format(record)
    assert json.loads(JsonLines().format(record))["message"] == message


def test_who_logs_does_not_wait_for_a_reader_and_lost_lines_are_counted() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as full, os.fdopen(reading) as reader:
        writer = LineWriter(full, max_waiting=10)
        writer.setFormatter(JsonLines())
        log = logging.Logger("hunk.test")
        log.addHandler(writer)
        for _ in range(2000):  # a pipe holds 64 KiB: whoever wrote into it himself would hang here
            log.warning("x" * 100)

        def end() -> None:
            while not writer.finish(timeout_s=0.1):
                pass
            full.close()

        ending = threading.Thread(target=end)
        ending.start()
        events = [json.loads(line) for line in reader]
        ending.join()
    written = sum(event["message"] != "lines were lost" for event in events)
    lost = sum(event.get("lines", 0) for event in events)
    assert written < 2000
    assert written + lost == 2000


@pytest.mark.parametrize("level", ["warning", "error"])
def test_the_level_leaves_out_what_is_below_it(level: str) -> None:
    stream = io.StringIO()
    with logging_to(stream, "json", level), serving(None) as url:
        assert post(url, {"original": FILE, "edit": BLOCK}).status_code == 200
        assert post(url, {"original": FILE, "edit": BLOCK, "mode": "model"}).status_code == 503
    lines = [json.loads(line)["status"] for line in stream.getvalue().splitlines()]
    assert lines == ([503] if level == "warning" else [])
