"""The replicas of a model as one `Merger` and `ChatModel`: each prompt goes where its KV is. Needs no torch."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from hashlib import blake2b
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import ray
from cachetools import LRUCache
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from agent_runtime.cluster.replica import CallContext, Event, Method, ModelDescription
from agent_runtime.errors import Busy, DeadlinePassed, HunkError, ModelUnavailable
from agent_runtime.llm.interface import ChatAnswer, ChatRequest, EncodedPrompt, ModelChoice, ModelMerge, ModelTask
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.telemetry.engine_metrics import EngineReport, report_replica_counts

MAX_TRIES = 3
"""Replicas that a request is sent to, one after the other, if they die."""

WATCH_SECONDS = 2.0
"""How often it is looked whether Ray runs on this machine."""

POLL_SECONDS = 0.25
"""How often a waiting request looks whether it was cancelled."""

REPORT_SECONDS = 5.0
"""How long replicas may take for their counts."""

PREAMBLE_CHARACTERS = 4096
"""Characters at the beginning of a file or a conversation that identify it."""

PREAMBLE_TOKENS = 1024

MAX_KEYS = 16384
"""Keys whose last replica is remembered, to count those that moved."""


class ReplicaLost(Exception):
    """The replica that worked on a request died."""


class RayDriver:
    """The connection of this process to Ray, in a thread of its own: Ray's processes end with the thread that starts
    them.
    """

    def __init__(
        self, connect: Callable[[], DeploymentHandle[Any]], on_close: Callable[[], None] = lambda: None
    ) -> None:
        """Raises what `connect` raises. `on_close` is called when the connection has ended."""
        self._on_close = on_close
        self.fault: ModelUnavailable | None = None
        """Why no replica can be asked any more; None while they can, and after `close`."""
        self.is_closed = False
        self.loop = asyncio.new_event_loop()
        connected: Future[DeploymentHandle[Any]] = Future()
        self._thread = threading.Thread(target=self._run, args=(connect, connected), name="ray", daemon=True)
        self._thread.start()
        self.handle = connected.result()

    def check(self) -> None:
        """Raise ModelUnavailable if no replica can be asked any more."""
        if self.fault is not None:
            raise ModelUnavailable(str(self.fault))
        if self.is_closed:
            raise ModelUnavailable("the service is ending, and its replicas with it")

    def close(self) -> None:
        """End the connection, and the local cluster if `connect` started one. Running requests fail."""
        self.is_closed = True
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self, connect: Callable[[], DeploymentHandle[Any]], connected: Future[DeploymentHandle[Any]]) -> None:
        try:
            try:
                connected.set_result(connect())
            except BaseException as error:  # noqa: BLE001 -- the caller raises it
                connected.set_exception(error)
                return
            watching = self.loop.create_task(self._watch_node(ray.get_runtime_context().get_node_id()))
            self.loop.run_forever()
            tasks = {watching, *asyncio.all_tasks(self.loop)}
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            ray.shutdown()
            self.loop.close()
            self._on_close()

    async def _watch_node(self, own: str) -> None:
        """Set `fault` once Ray's own process on this machine has ended: nothing can be asked without it."""
        while self.fault is None:
            await asyncio.sleep(WATCH_SECONDS)
            nodes = await self.loop.run_in_executor(None, ray.nodes)
            if not any(node["Alive"] for node in nodes if node["NodeID"] == own):
                self.fault = ModelUnavailable(
                    "Ray has ended on this machine, and with it the replicas or the way to them"
                )


class ReplicatedMerger:
    """A `Merger` whose model runs in replicas. A request whose replica dies goes to another one."""

    def __init__(self, driver: RayDriver, deadline_s: float | None = None) -> None:
        """`deadline_s`: the limit of a request that has none, including the wait for a replica."""
        self._driver = driver
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._last_replicas: LRUCache[str, str] = LRUCache(MAX_KEYS)
        self._counts: Counter[str] = Counter()
        description = driver.handle.describe.remote().result()
        assert isinstance(description, ModelDescription)
        self.description = description

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or the name of its file."""
        return self.description.name

    @property
    def fault(self) -> Exception | None:
        """What ended Ray on this machine; Serve replaces replicas that break down."""
        return self._driver.fault

    def chat(self) -> ReplicatedChat:
        """Return the same model for chats."""
        return ReplicatedChat(self)

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        """Have a replica write the merge; raises what `Merger.merge` raises."""
        made = self.call("merge", task, context, progress)
        assert isinstance(made, ModelMerge)
        return made

    def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelChoice | ModelMerge:
        """Have a replica choose; raises what `Merger.choose` raises."""
        made = self.call("choose", task, context, progress)
        assert isinstance(made, ModelChoice | ModelMerge)
        return made

    def reports(self) -> Sequence[EngineReport]:
        """Return the counts of each replica that answers in time, and of what happened between them."""
        found: list[EngineReport] = []
        with suppress(RayError, RayServeException, TimeoutError):
            for of_replica in self._driver.handle.broadcast("report").results(timeout_s=REPORT_SECONDS):
                found += of_replica
        with self._lock:
            return [*found, report_replica_counts(self._counts)]

    def close(self) -> None:
        """End the connection to the replicas; a local cluster ends with it."""
        self._driver.close()

    def call(
        self, method: Method, request: ModelTask | ChatRequest, context: RequestContext, progress: ProgressListener
    ) -> Any:
        """Have a replica run a method, and pass its progress on in this thread.

        If the replica dies, another one is asked, unless the listener was told text that it would be told again; then
        it raises ModelUnavailable, as it does after MAX_TRIES. Raises Busy if all replicas are full, DeadlinePassed,
        Cancelled, and the replica's HunkError.
        """
        key = make_affinity_key(request, context)
        own = request.deadline_s if isinstance(request, ChatRequest) else None
        limit = own or self._deadline_s
        deadline = None if limit is None else time.monotonic() + limit
        context.release_slot()
        call = CallContext(
            context.principal, context.flow, context.priority, context.request_id, wants_text=progress.wants_text
        )
        can_repeat = not (isinstance(request, ChatRequest) and progress.wants_text)
        for _ in range(MAX_TRIES):
            answer = None
            try:
                answer = _ReplicaAnswer(self._driver, method, request, key, call)
                result, replica = answer.read(context, progress, deadline)
            except ReplicaLost:
                if answer is not None and answer.has_text and not can_repeat:
                    break
                self._count("retries")
            else:
                self._count("requests")
                self._remember(key, replica)
                return result
        fault = ModelUnavailable("the replica that worked on this request has died; send the request again")
        fault.retry_after_s = 1.0
        raise fault

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _remember(self, key: str, replica: str) -> None:
        with self._lock:
            self._counts["moves"] += self._last_replicas.get(key, replica) != replica
            self._last_replicas[key] = replica


class ReplicatedChat:
    """The `ChatModel` of a `ReplicatedMerger`."""

    def __init__(self, merger: ReplicatedMerger) -> None:
        self._merger = merger

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or the name of its file."""
        return self._merger.name

    @property
    def text(self) -> TokenizerBundle:
        """The tokenizer and the chat template."""
        return self._merger.description.text

    @property
    def max_seq_len(self) -> int:
        """Limit of prompt and answer together, in tokens."""
        return self._merger.description.max_seq_len

    def answer(self, request: ChatRequest, context: RequestContext, progress: ProgressListener) -> ChatAnswer:
        """Have a replica write the answer; raises what `ChatModel.answer` raises."""
        answer = self._merger.call("answer", request, context, progress)
        assert isinstance(answer, ChatAnswer)
        return answer


class _ReplicaAnswer:
    """One request at one replica."""

    def __init__(
        self, driver: RayDriver, method: Method, request: ModelTask | ChatRequest, key: str, call: CallContext
    ) -> None:
        self.has_text = False
        self._driver = driver
        self._events: SimpleQueue[Event] = SimpleQueue()
        handle = driver.handle.options(method_name="run", stream=True, session_id=key)
        try:
            response = handle.remote(method, request, call)
        except (RayError, RayServeException) as error:
            _raise_fault(error)
        assert isinstance(response, DeploymentResponseGenerator)
        self._response = response
        self._pump = asyncio.run_coroutine_threadsafe(self._receive(), driver.loop)

    def read(self, context: RequestContext, progress: ProgressListener, deadline: float | None) -> tuple[Any, str]:
        """Pass the progress on; return the result and the replica's id. Raises ReplicaLost, and as `call` does."""
        context.cancel.add_callback(lambda: self._events.put(("cancelled", ())))
        is_finished = False
        try:
            while True:
                try:
                    name, arguments = self._events.get(timeout=POLL_SECONDS)
                except Empty:
                    name, arguments = "waiting", ()
                is_finished = name in ("result", "fault", "lost")
                if name == "result":
                    return arguments[0], arguments[1]
                if is_finished:
                    _raise_fault(*arguments)
                context.cancel.raise_if_cancelled()
                self._driver.check()
                if deadline is not None and time.monotonic() > deadline:
                    raise DeadlinePassed("the model did not answer in time; try again, or raise --deadline")
                if name.startswith("on_"):
                    self.has_text = self.has_text or name == "on_pieces"
                    getattr(progress, name)(*arguments)
        finally:
            if not is_finished and not self._driver.is_closed:
                self._response.cancel()  # type: ignore[no-untyped-call]

    async def _receive(self) -> None:
        try:
            async for batch in self._response:
                for event in batch:
                    self._events.put(event)
        except Exception as error:  # noqa: BLE001 -- the reader raises what it means
            self._events.put(("lost", (error,)))


def _raise_fault(error: Exception) -> NoReturn:
    if isinstance(error, HunkError):
        raise error
    if isinstance(error, RayActorError | ReplicaUnavailableError):
        raise ReplicaLost from error
    if isinstance(error, BackPressureError):
        raise Busy("all replicas are busy; try again") from error
    raise ModelUnavailable(f"the replicas cannot be asked: {type(error).__name__}: {error}") from error


def make_affinity_key(request: ModelTask | ChatRequest, context: RequestContext) -> str:
    """Return the key of the prompts that share KV with this one: they should reach the same replica.

    It is that of the session, else of an edit's file, or the beginning of its text; of a chat the beginning of its
    prompt. Tenants share none.
    """
    if context.affinity:
        place: Any = context.affinity
    elif isinstance(request, ModelTask):
        edit = request.request
        place = [edit.root, edit.path] if edit.path else request.text[:PREAMBLE_CHARACTERS]
    elif isinstance(request.prompt, EncodedPrompt):
        place = [int(token_id) for token_id in request.prompt.token_ids[:PREAMBLE_TOKENS]]
    else:
        first = next((at for at, message in enumerate(request.prompt) if message.role == "user"), 0)
        place = [message.text[:PREAMBLE_CHARACTERS] for message in request.prompt[: first + 1]]
    salt = request.request.salt if isinstance(request, ModelTask) else request.salt
    return blake2b(json.dumps([salt, place]).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
