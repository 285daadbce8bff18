"""Limits of a tenant: rates, concurrent requests and tokens; a request's priority is an argument."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.errors import TooManyRequests
from agent_runtime.llm.generate import RunResults, run_requests
from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.quotas import CpuSlots, FairQueue, TenantLimits, TenantRateLimiter, TokenBucket
from agent_runtime.request_context import LOCAL, NO_PROGRESS, PRINCIPAL_KEY, Principal, ProgressListener, RequestContext
from agent_runtime.server.auth import get_flow
from agent_runtime.server.service import Service
from agent_runtime.server.token_file import NAME
from agent_runtime.telemetry.metrics import RequestOutcome
from agent_runtime.types import Usage
from engine.engine_config import SchedulerConfig
from engine.errors import EngineClosed
from engine.scheduler.queue import Rank, ScheduledSequence, build_rank
from engine.types import GenerationRequest, Proposer
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import post, serving

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"


@dataclass
class Clock:
    """A clock that a test turns."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@given(
    per_minute=st.integers(1, 600),
    steps=st.lists(st.tuples(st.floats(0.0, 90.0), st.integers(0, 300)), max_size=30),
)
def test_the_bucket_is_that_of_a_simulation_in_small_steps(per_minute: int, steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    level = float(per_minute)
    for seconds, amount in steps:
        clock.now += seconds
        for _ in range(100):
            level = min(per_minute, level + seconds / 100 * per_minute / 60)
        expected = max(0.0, (min(1, per_minute) - level) * 60 / per_minute)
        assert bucket.compute_wait(1) == pytest.approx(expected, abs=1e-6)
        bucket.charge(amount)
        level -= amount


def test_after_the_wait_that_is_named_the_request_is_admitted_and_not_before() -> None:
    clock = Clock()
    tenants = TenantRateLimiter(TenantLimits(requests_per_minute=3), clock=clock)
    for _ in range(3):
        with tenants.admit("a"):
            pass
    with pytest.raises(TooManyRequests) as refused, tenants.admit("a"):
        pass
    assert refused.value.retry_after_s == pytest.approx(20.0)
    with tenants.admit("b"):
        pass  # another tenant has its own
    clock.now += 19.9
    with pytest.raises(TooManyRequests), tenants.admit("a"):
        pass
    clock.now += 0.2
    with tenants.admit("a"):
        pass


def test_tokens_are_charged_when_the_answer_is_there_and_cached_ones_are_free() -> None:
    clock = Clock()
    tenants = TenantRateLimiter(TenantLimits(tokens_per_minute=100), clock=clock)
    usage = Usage(prompt=1000, cached=900, recomputed=100, completion=50)
    with tenants.admit("a"):
        tenants.on_outcome(RequestOutcome("/apply", "a", "merged", usage))
    with pytest.raises(TooManyRequests) as refused, tenants.admit("a"):
        pass
    assert refused.value.retry_after_s == pytest.approx(50 * 60 / 100)
    tenants.on_outcome(RequestOutcome("/apply", "b", "merged", replace(usage, recomputed=0, completion=100)))
    with tenants.admit("b"):
        pass  # it has used just what it has


def test_a_batch_counts_as_its_requests_and_one_that_is_refused_as_none() -> None:
    clock = Clock()
    tenants = TenantRateLimiter(TenantLimits(requests_per_minute=6), clock=clock)
    with tenants.admit("a"):
        tenants.charge_requests("a", 4)
    for wait_s in (10.0, 0.1):
        with pytest.raises(TooManyRequests) as refused, tenants.admit("a"):
            tenants.charge_requests("a", 3)
        assert (refused.value.retry_after_s, refused.value.limit) == (pytest.approx(wait_s), "requests_per_minute")
        clock.now += 9.9
    with tenants.admit("a"):
        tenants.charge_requests("a", 3)
    with tenants.admit("b"):
        tenants.charge_requests("b", 6)  # another tenant has its own


def test_a_batch_of_more_than_a_minutes_worth_is_paid_off_by_who_comes_next() -> None:
    clock = Clock()
    tenants = TenantRateLimiter(TenantLimits(requests_per_minute=3), clock=clock)
    with tenants.admit("a"):
        tenants.charge_requests("a", 10)
    with pytest.raises(TooManyRequests) as refused, tenants.admit("a"):
        pass
    assert refused.value.retry_after_s == pytest.approx(8 * 20.0)
    clock.now += 8 * 20.0
    with pytest.raises(TooManyRequests) as refused, tenants.admit("a"):
        tenants.charge_requests("a", 10)
    assert refused.value.retry_after_s == pytest.approx(2 * 20.0), "until it is full"


def test_places_are_free_again_whatever_became_of_the_request() -> None:
    tenants = TenantRateLimiter(TenantLimits(concurrent_requests=2), max_in_work=3)
    with tenants.admit("a"):
        with pytest.raises(ZeroDivisionError), tenants.admit("a"):
            raise ZeroDivisionError
        with tenants.admit("a"), pytest.raises(TooManyRequests), tenants.admit("a"):
            pass
        with tenants.admit("b"), tenants.admit("b"), pytest.raises(TooManyRequests), tenants.admit("c"):
            pass  # the service is full
    with tenants.admit("a"), tenants.admit("a"):
        pass


def served_order(turns: FairQueue, arrivals: list[str]) -> list[str]:
    """Who is served in which order where all have come before the first is served, one at a time."""
    queue: list[tuple[int, int, str]] = []
    with ExitStack() as open_turns:
        for place, tenant in enumerate(arrivals):
            heapq.heappush(queue, (open_turns.enter_context(turns.ticket(tenant)), place, tenant))
        return [heapq.heappop(queue)[2] for _ in arrivals]


def test_one_request_waits_for_at_most_one_of_each_other_tenant() -> None:
    assert served_order(FairQueue(), ["flood"] * 100 + ["calm"]).index("calm") <= 1
    order = served_order(FairQueue(), ["a"] * 5 + ["b"] * 5 + ["c"])
    assert order[:3] == ["a", "b", "c"]
    assert order == ["a", "b", "c", "a", "b", "a", "b", "a", "b", "a", "b"]


def test_who_was_idle_has_no_credit_and_who_was_served_no_debt() -> None:
    turns = FairQueue()
    for _ in range(50):
        with turns.ticket("busy"):
            pass
    with turns.ticket("busy") as first, turns.ticket("new") as second:
        assert first == second, "both begin at the round that is served"


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
def test_within_a_tenant_nobody_overtakes(arrivals: list[str]) -> None:
    turns, last = FairQueue(), dict[str, int]()
    with ExitStack() as open_turns:
        for tenant in arrivals:
            number = open_turns.enter_context(turns.ticket(tenant))
            assert number > last.get(tenant, 0)
            last[tenant] = number


@pytest.mark.parametrize("served", [0, 1000, 10**9])
def test_the_engine_admits_by_round_however_many_have_been_served(served: int) -> None:
    rank, ids = build_rank(SchedulerConfig().aging_s), count()

    def waiting(number: int, arrival: float) -> Rank:
        request = GenerationRequest([1], 1, priority=served + number)
        return rank(ScheduledSequence(next(ids), [1], 2, priority=request.priority, arrival=arrival))

    first, second = waiting(1, 1e6 + 5), waiting(2, 1e6)
    assert first < second, "a round counts for more than some seconds"
    assert waiting(2, 1e6) < waiting(2, 1e6 + 0.01), "within a round the first goes first"


def limited(limits: TenantLimits) -> Callable[[Service], Service]:
    return lambda service: replace(service, tenants=TenantRateLimiter(limits))


def test_over_the_rate_the_answer_is_429_with_the_seconds_and_nothing_is_done() -> None:
    with serving(None, change=limited(TenantLimits(requests_per_minute=2))) as url:
        body = {"original": FILE, "edit": BLOCK}
        assert [post(url, body).status_code for _ in range(2)] == [200, 200]
        refused = post(url, body)
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:hunk:problem:too-many-requests")
        assert 25 <= int(refused.headers["Retry-After"]) <= 30
        assert httpx.get(f"{url}/healthz").status_code == 200, "health checks are never refused"
        assert 'hunk_refused_requests_total{limit="requests_per_minute"} 1.0' in httpx.get(f"{url}/metrics").text


def test_a_batch_over_the_rate_is_refused_as_a_whole_before_any_of_it_is_done(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FILE)
    body = {"original": FILE, "edit": BLOCK}
    with serving(None, tmp_path, change=limited(TenantLimits(requests_per_minute=4))) as url:
        done = httpx.post(f"{url}/apply/batch", json={"requests": [body, {}, body]})
        assert (done.status_code, len(done.text.splitlines())) == (200, 3)
        writing = {"requests": [{"path": "a.py", "edit": BLOCK, "write": True}, body]}
        refused = httpx.post(f"{url}/apply/batch", json=writing)
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:hunk:problem:too-many-requests")
        assert 10 <= int(refused.headers["Retry-After"]) <= 15
        assert (tmp_path / "a.py").read_text() == FILE
        assert post(url, body).status_code == 200, "the one that is left"
        assert httpx.post(f"{url}/apply/batch", json={"requests": []}).status_code == 429, "it is a request, too"
        assert 'hunk_refused_requests_total{limit="requests_per_minute"} 2.0' in httpx.get(f"{url}/metrics").text


def test_places_that_are_taken_are_refused_and_free_ones_are_not() -> None:
    hold = threading.Event()
    merger = ScriptedMerger(FILE.replace("1", "3"), hold=hold)
    body = {"original": FILE, "edit": BLOCK, "mode": "model"}
    answers: list[int] = []
    with serving(merger, change=limited(TenantLimits(concurrent_requests=2))) as url:
        threads = [threading.Thread(target=lambda: answers.append(post(url, body).status_code)) for _ in range(2)]
        for thread in threads:
            thread.start()
        while len(merger.seen) < 2:
            time.sleep(0.01)
        refused = post(url, {"original": FILE, "edit": BLOCK})
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        hold.set()
        for thread in threads:
            thread.join()
        assert answers == [200, 200]
        assert post(url, {"original": FILE, "edit": BLOCK}).status_code == 200


def test_a_tenant_that_has_used_its_tokens_waits_and_so_do_its_edits_by_rule() -> None:
    by_model = {"original": FILE, "edit": BLOCK, "mode": "model"}  # 15 tokens
    with serving(ScriptedMerger(FILE), change=limited(TenantLimits(tokens_per_minute=10))) as url:
        assert post(url, by_model).status_code == 200
        refused = post(url, {"original": FILE, "edit": BLOCK})
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:hunk:problem:too-many-requests")
        assert 20 <= int(refused.headers["Retry-After"]) <= 30
        assert "tokens a minute" in refused.json()["detail"]


def test_what_a_model_in_doubt_has_computed_is_charged() -> None:
    lazy = {
        "original": "".join(f"def {name}():\n    timeout = 10\n    return timeout\n\n\n" for name in "abc"),
        "edit": "# ... existing code ...\n    timeout = 30\n# ... existing code ...\n",
        "path": "a.py",
    }  # 10 tokens
    with serving(ScriptedMerger(choice=None), change=limited(TenantLimits(tokens_per_minute=5))) as url:
        assert [post(url, lazy).status_code for _ in range(2)] == [422, 429]


class Priorities(ScriptedMerger):
    """Notes with which priority it is asked."""

    priorities: ClassVar[list[int]] = []

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        self.priorities.append(context.priority)
        return super().merge(task, context, progress)


def test_a_requests_priority_is_known_where_the_model_is_asked() -> None:
    merger = Priorities(FILE)
    with serving(merger) as url:
        for _ in range(3):
            post(url, {"original": FILE, "edit": BLOCK, "mode": "model"})
    assert merger.priorities == [1, 2, 3]


class Taking:
    """An engine that takes a request and is closed."""

    def __init__(self) -> None:
        self.taken: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest, proposer: Proposer | None) -> NoReturn:
        self.taken.append(request)
        raise EngineClosed("closed")


def test_the_engine_is_told_the_priority() -> None:
    engine, context = Taking(), RequestContext(priority=7)
    with pytest.raises(EngineClosed):
        run_requests(cast(Any, engine), [(GenerationRequest([1], 1), None)], context, NO_PROGRESS, RunResults())
    assert [request.priority for request in engine.taken] == [7]


def test_what_is_taken_counts_for_the_tenant_of_a_token_and_else_for_the_senders_network() -> None:
    """Behind a proxy all have one address, and tokens."""
    sent = {"type": "http", "client": ("10.0.0.1", 5)}
    assert get_flow(sent | {PRINCIPAL_KEY: Principal("ann", frozenset())}) == "ann"
    assert get_flow(sent) == get_flow(sent | {"client": ("10.0.0.1", 6)}) == get_flow(sent | {PRINCIPAL_KEY: LOCAL})
    assert get_flow(sent) != get_flow(sent | {"client": ("10.0.0.2", 5)})
    assert get_flow(sent | {"client": ("2001:db8::1", 5)}) == get_flow(sent | {"client": ("2001:db8::2", 5)})
    assert not NAME.fullmatch(get_flow(sent)), "a tenant cannot be called so"


class NoLog:
    """Middleware in place of the request log: records nothing."""

    def __init__(self, app: ASGIApp, **_: object) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


@dataclass
class RecordingEngine(ScriptedMerger):
    """Records the requests that reach the engine, then answers as scripted."""

    requests: list[GenerationRequest] = field(default_factory=list)

    def generate(self, request: GenerationRequest, proposer: Proposer | None) -> NoReturn:
        self.requests.append(request)
        raise EngineClosed("closed")

    def merge(self, *arguments: Any) -> ModelMerge:
        with pytest.raises(EngineClosed):
            run_requests(cast(Any, self), [(GenerationRequest([1], 1), None)], *arguments[1:], RunResults())
        return super().merge(*arguments)


class RecordingSlots(CpuSlots):
    """Records for whom a CPU slot is acquired."""

    def __init__(self) -> None:
        super().__init__()
        self.acquired: list[str] = []

    @asynccontextmanager
    async def acquire(self, flow: str) -> AsyncIterator[Callable[[], None]]:
        self.acquired.append(flow)
        async with super().acquire(flow) as release:
            yield release


def test_two_requests_keep_their_priority_and_cpu_slot_without_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.server.app.RequestLogMiddleware", NoLog)
    engine, slots = RecordingEngine(FILE), RecordingSlots()
    with serving(engine, change=lambda service: replace(service, cpu_slots=slots)) as url:
        for _ in range(2):
            assert post(url, {"original": FILE, "edit": BLOCK, "mode": "model"}).json()["method"] == "model"
    assert [request.priority for request in engine.requests] == [1, 2]
    assert slots.acquired == ["@127.0.0.1"] * 2
