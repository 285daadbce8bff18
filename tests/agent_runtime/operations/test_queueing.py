"""CPU slots and the queue at the model: shared fairly by flow, whoever leaves when."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_runtime.llm.interface import ChatAnswer, ChatRequest, ModelMerge, ModelTask
from agent_runtime.quotas import CpuSlots
from agent_runtime.request_context import ProgressListener, RequestContext
from tests.agent_runtime.openai.scripted_chat import ChattingMerger, ScriptedChat
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import RecordingSlots, asking, post, serving
from tests.security.guarded import Guarded, guarded

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"


class Clock:
    """Stands still unless it is put on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def order_of(*works: tuple[str, float], slots: CpuSlots, clock: Clock) -> list[str]:
    """In which order works of a holder and so many seconds get a place, one after the other, that come at once."""
    entered: list[str] = []

    async def work(holder: str, seconds: float) -> None:
        async with slots.acquire(holder):
            entered.append(holder)
            await asyncio.sleep(0)
            clock.now += seconds

    async def all_at_once() -> None:
        await asyncio.gather(*(work(*one) for one in works))

    asyncio.run(all_at_once())
    return entered


def test_who_waits_is_let_in_by_the_time_that_its_holder_had() -> None:
    """Not by the number of its requests: 1 of 10 s counts as 10 of 1 s."""
    works = [("slow", 10.0)] * 3 + [("quick", 1.0)] * 12
    order = order_of(*works, slots=CpuSlots(1, clock=(clock := Clock())), clock=clock)
    assert "".join(each[0] for each in order) == "sq" + 9 * "q" + "sqqs"


def test_within_a_holder_the_first_that_came_goes_first_and_equals_take_turns() -> None:
    works = [("a", 1.0)] * 3 + [("b", 1.0)] * 3 + [("c", 1.0)]
    order = order_of(*works, slots=CpuSlots(1, clock=(clock := Clock())), clock=clock)
    assert "".join(order) == "abcabab"


def test_slow_work_of_one_holder_never_has_all_places() -> None:
    """It waits with the third of three places free, which another has at once."""

    async def run() -> list[str]:
        entered: list[str] = []
        end = asyncio.Event()
        slots = CpuSlots()

        async def work(holder: str) -> None:
            async with slots.acquire(holder):
                entered.append(holder)
                await end.wait()

        tasks = [asyncio.create_task(work("slow")) for _ in range(10)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(work("other")))
        await asyncio.sleep(0)
        before = list(entered)
        end.set()
        await asyncio.gather(*tasks)
        return before

    assert asyncio.run(run()) == ["slow", "slow", "other"]


def test_who_comes_late_begins_with_what_the_last_one_had_and_has_not_saved_time_up() -> None:
    async def run() -> list[str]:
        clock = Clock()
        slots = CpuSlots(1, clock=clock)
        entered: list[str] = []

        async def work(holder: str) -> None:
            async with slots.acquire(holder):
                entered.append(holder)
                clock.now += 1.0
                if entered.count("a") == 5 and "b" not in entered:
                    tasks.extend(asyncio.create_task(work("b")) for _ in range(6))
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(work("a")) for _ in range(10)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
        return entered

    assert "".join(asyncio.run(run())) == "aaaaab" + "ab" * 5


@pytest.mark.parametrize("seed", range(20))
def test_never_more_than_there_are_and_all_are_free_again_whoever_leaves_when(seed: int) -> None:
    rng = random.Random(seed)
    num_inside, most = 0, 0

    @contextmanager
    def inside() -> Iterator[None]:
        nonlocal num_inside, most
        num_inside += 1
        most = max(most, num_inside)
        try:
            yield
        finally:
            num_inside -= 1

    async def work(slots: CpuSlots) -> None:
        async with slots.acquire(rng.choice("abc")) as release:
            early = rng.random() < 0.3
            with inside():
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            if early:
                release()
                release()  # twice is once
                await asyncio.sleep(0.001)

    async def crowd() -> None:
        slots = CpuSlots(3, 3)
        tasks = [asyncio.create_task(work(slots)) for _ in range(60)]
        for _ in range(30):
            await asyncio.sleep(0)
            rng.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)
        async with asyncio.timeout(1):  # all three can be had again
            async with slots.acquire("a"), slots.acquire("a"), slots.acquire("a"):
                pass
        assert not slots._used, "what is over is forgotten"

    asyncio.run(crowd())
    assert most == 3


class SlowToTake(ScriptedMerger):
    """Takes a request no sooner than it answers it, as an engine in the middle of a long pass."""

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        assert self.hold is not None
        context.release_slot()
        self.hold.wait()
        return super().merge(task, context, progress)


@pytest.mark.parametrize("kind", [ScriptedMerger, SlowToTake])
def test_edits_that_wait_for_the_model_hold_no_place(kind: type[ScriptedMerger]) -> None:
    hold = threading.Event()
    merger = kind(FILE.replace("1", "3"), hold=hold)
    answers: list[int] = []
    body = {"original": FILE, "edit": BLOCK, "mode": "model"}
    with serving(merger) as url:
        threads = [threading.Thread(target=lambda: answers.append(post(url, body).status_code)) for _ in range(6)]
        for thread in threads:
            thread.start()
        by_rule = [post(url, {"original": FILE, "edit": BLOCK}).json()["method"] for _ in range(3)]
        hold.set()
        for thread in threads:
            thread.join()
    assert by_rule == ["deterministic"] * 3
    assert answers == [200] * 6


def test_an_edit_is_not_ended_by_another_whose_client_leaves() -> None:
    merger, answers = ScriptedMerger(FILE.replace("1", "3"), hold=threading.Event()), list[int]()
    body = {"original": FILE, "edit": BLOCK, "mode": "model"}
    with serving(merger) as url:
        thread = threading.Thread(target=lambda: answers.append(post(url, body).status_code))
        thread.start()
        with asking(url, body):
            while len(merger.seen) < 2:
                time.sleep(0.01)
        assert merger.cancelled.wait(10)
        time.sleep(0.1)  # the other one looks every 10 ms
        assert merger.hold is not None
        merger.hold.set()
        thread.join()
    assert answers == [200]


@dataclass
class PhasedChat(ScriptedChat):
    """Releases its slot as a loaded model does, and records when."""

    events: list[str] = field(default_factory=list)

    def answer(self, request: ChatRequest, context: RequestContext, progress: ProgressListener) -> ChatAnswer:
        self.events.append("laid out")
        context.release_slot()
        self.events.append("asked")
        return super().answer(request, context, progress)


CHAT = {"messages": [{"role": "user", "content": "hello"}]}
CODE = "limit = 10\nretries = 3\n\n\ndef area(r):\n    return 3 * r * r\n"
UPDATE = "limit = 10\nseconds = 5\nretries = 3\n\n# ... existing code ...\n"
EDIT = {"messages": [{"role": "user", "content": f"<code>{CODE}</code><update>{UPDATE}</update>"}]}
ASKED = ["acquired", "acquired", "laid out", "released", "asked"]
BY_RULE = ["acquired", "acquired"]


@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        ("/v1/chat/completions", CHAT, ASKED),
        ("/v1/chat/completions", CHAT | {"stream": True}, ASKED),
        ("/v1/chat/completions", EDIT, BY_RULE),
        ("/v1/chat/completions", EDIT | {"stream": True}, BY_RULE),
        ("/v1/code/apply", {"initial_code": CODE, "edit_snippet": UPDATE}, BY_RULE),
        ("/apply", {"original": FILE, "edit": BLOCK}, ["acquired"]),
        ("/apply", {"original": FILE, "edit": BLOCK, "stream": True}, ["acquired"]),
    ],
)
def test_all_work_by_rule_has_a_place_and_none_is_held_while_the_model_is_asked(
    route: str, body: dict[str, Any], expected: list[str]
) -> None:
    events: list[str] = []
    merger = ChattingMerger(FILE, chatting=PhasedChat(events=events))
    with serving(merger, change=lambda service: replace(service, cpu_slots=RecordingSlots(events))) as url:
        answer = httpx.post(url + route, json={"model": "hunk"} | body if "/v1" in route else body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert events == expected


def test_streams_that_wait_for_the_model_hold_no_place() -> None:
    hold = threading.Event()
    merger = ChattingMerger(chatting=ScriptedChat(hold=hold))
    answers: list[int] = []
    body = {"model": "hunk", "stream": True, **CHAT}
    with serving(merger) as url:
        chats = f"{url}/v1/chat/completions"
        threads = [
            threading.Thread(target=lambda: answers.append(httpx.post(chats, json=body, timeout=30).status_code))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        while len(merger.chatting.seen) < 6:
            time.sleep(0.01)
        by_rule = post(url, {"original": FILE, "edit": BLOCK}).json()["method"]
        hold.set()
        for thread in threads:
            thread.join()
    assert by_rule == "deterministic"
    assert answers == [200] * 6


LINES = 3000
LONG = "".join(f"value_{number} = {number}\n" for number in range(LINES))
LONG_BLOCK = "<<<<<<< SEARCH\nvalue_7 = 7\n=======\nvalue_7 = 8\n>>>>>>> REPLACE\n"
NUM_FLOODING = 40
WANTED = {"flood": ("flood", ("apply",)), "calm": ("calm", ("apply", "read"))}


def num_in_flight(service: Guarded) -> int:
    text = service.ask("GET", "/metrics", "calm").text
    line = next(line for line in text.splitlines() if line.startswith("hunk_http_requests_in_flight "))
    return int(float(line.split()[1])) - 1  # without this question


def test_a_single_edit_goes_before_a_flood(tmp_path: Path) -> None:
    answered: list[int] = []
    with guarded(tmp_path, wanted=WANTED) as service:  # type: ignore[arg-type]

        def send() -> None:
            headers = {"authorization": f"Bearer {service.tokens['flood']}"}
            body = {"original": LONG, "edit": LONG_BLOCK}
            answered.append(httpx.post(f"{service.url}/apply", json=body, headers=headers, timeout=120).status_code)

        threads = [threading.Thread(target=send) for _ in range(NUM_FLOODING)]
        for thread in threads:
            thread.start()
        while num_in_flight(service) + len(answered) < NUM_FLOODING:  # until all have come
            time.sleep(0.005)
        before = len(answered)
        calm = service.ask("POST", "/apply", "calm", json={"original": "value_7 = 7\n", "edit": LONG_BLOCK})
        between = len(answered) - before
        for thread in threads:
            thread.join()
    assert calm.json()["status"] == "merged"
    assert answered == [200] * NUM_FLOODING
    assert NUM_FLOODING - before > 12, "too few waited to tell anything: make the files longer"
    assert between <= 8, f"{between} of the flood's edits were answered before the one that came behind them"
