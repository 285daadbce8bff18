"""What runs in a replica: a loaded model that answers over Ray Serve. Only replicas import torch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from ray import serve
from ray.serve._private import replica as serve_replica
from ray.serve.config import RequestRouterConfig

from agent_runtime.cluster.config import ReplicaConfig
from agent_runtime.errors import HunkError, ModelFailed, ModelUnavailable
from agent_runtime.llm.interface import ChatRequest, ModelTask
from agent_runtime.models.progress import SilentProgress
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.request_context import CancelToken, Principal, ProgressListener, RequestContext
from agent_runtime.telemetry.engine_metrics import EngineReport
from editor.execution import use_cache_of

LOG = logging.getLogger("hunk.replica")

Method = Literal["merge", "choose", "answer"]
"""A method of `Merger` or `ChatModel`."""

Event = tuple[str, tuple[Any, ...]]
"""A method of `ProgressListener` and its arguments; the last one is `result` or `fault`, with the result or error."""

LAST_EVENTS = ("result", "fault")

NUM_FALLBACKS = 2
"""Replicas that are tried after a full one."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What the service has to know of the model without having it."""

    name: str
    text: TokenizerBundle
    max_seq_len: int


@dataclass(frozen=True, slots=True)
class CallContext:
    """What of a request's context goes to the replica. wants_text: whether the listener wants the answer's text."""

    principal: Principal
    flow: str
    priority: int
    request_id: str
    wants_text: bool


def build_app(fields: dict[str, Any]) -> serve.Application:
    """Return the Serve application of a `ReplicaConfig` as JSON; a Serve config file names this function."""
    config = ReplicaConfig.from_json(fields)
    on_card = config.options.device.startswith("cuda")
    router: Any = config.router
    deployment: Any = serve.deployment(ModelReplica)
    application: serve.Application = deployment.options(
        num_replicas=config.num_replicas,
        max_ongoing_requests=config.options.max_num_seqs,
        graceful_shutdown_timeout_s=config.drain_s,
        ray_actor_options={"num_gpus": 1, "num_cpus": 0} if on_card else {"num_cpus": 0 if config.loopback_only else 1},
        request_router_config=RequestRouterConfig(
            request_router_class=router, request_router_kwargs={"num_fallback_replicas": NUM_FALLBACKS}
        ),
    ).bind(fields)
    return application


class ModelReplica:
    """A model behind Ray Serve. It fails to start if the model cannot be loaded."""

    def __init__(self, fields: dict[str, Any]) -> None:
        config = ReplicaConfig.from_json(fields)
        if config.loopback_only:
            bind_to_loopback()
        from agent_runtime.wiring import make_model_slot

        slot = make_model_slot(config.model, config.settings, config.options, SilentProgress(), config.merging)
        self._merger = slot.load()
        if config.num_threads is not None:
            import torch

            torch.set_num_threads(config.num_threads)
        self._threads = ThreadPoolExecutor(config.options.max_num_seqs, thread_name_prefix="replica")
        self._id = serve.get_replica_context().replica_id.unique_id

    def describe(self) -> ModelDescription:
        """Return what the service has to know of the model."""
        chat = self._merger.chat()
        return ModelDescription(self._merger.name, chat.text, chat.max_seq_len)

    def report(self) -> list[EngineReport]:
        """Return the counts of the engine, under the replica's id."""
        return [replace(report, replica=self._id) for report in self._merger.reports()]

    def check_health(self) -> None:
        """Raise ModelUnavailable if the engine broke down; Serve then starts another replica."""
        if self._merger.fault is not None:
            raise ModelUnavailable(f"the model broke down: {self._merger.fault}")

    async def run(
        self, method: Method, request: ModelTask | ChatRequest, call: CallContext
    ) -> AsyncIterator[list[Event]]:
        """Yield the events of an answer, as many as there are at a time. Closing the iterator cancels the work.

        The result comes with the replica's id.
        """
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def put(name: str, *arguments: Any) -> None:
            with suppress(RuntimeError):  # the replica is being stopped
                loop.call_soon_threadsafe(events.put_nowait, (name, arguments))

        cancel = CancelToken()
        context = RequestContext(call.principal, call.flow, call.priority, call.request_id, cancel)
        progress = _EventListener(put, wants_text=call.wants_text)
        loop.run_in_executor(self._threads, self._work, method, request, context, progress, put)
        try:
            while True:
                batch = [await events.get()]
                while not events.empty():
                    batch.append(events.get_nowait())
                yield batch
                if batch[-1][0] in LAST_EVENTS:
                    return
        finally:
            cancel.cancel()

    def _work(
        self,
        method: Method,
        request: ModelTask | ChatRequest,
        context: RequestContext,
        progress: ProgressListener,
        put: Callable[..., None],
    ) -> None:
        try:
            if isinstance(request, ChatRequest):
                put("result", self._merger.chat().answer(request, context, progress), self._id)
                return
            decide = self._merger.choose if method == "choose" else self._merger.merge
            with use_cache_of(request.request.salt):
                put("result", decide(request, context, progress), self._id)
        except HunkError as fault:
            put("fault", fault)
        except Exception as error:  # the outermost loop of this thread: the service has to hear of it
            LOG.exception("a request failed")
            put("fault", ModelFailed(f"the model failed: {type(error).__name__}: {error}"))


class _EventListener(ProgressListener):
    """Sends all progress as events."""

    def __init__(self, put: Callable[..., None], *, wants_text: bool) -> None:
        self.wants_text = wants_text
        for name in ("on_start", "on_phase", "on_tokens", "on_pieces", "on_answer"):
            setattr(self, name, lambda *arguments, _name=name: put(_name, *arguments))


def bind_to_loopback() -> None:
    """Have Serve's server of this replica listen on 127.0.0.1: it has no setting for that, and listens everywhere."""
    module: Any = serve_replica
    add_port = module.add_port_to_grpc_server
    module.add_port_to_grpc_server = lambda server, address: add_port(server, address.replace("[::]", "127.0.0.1"))
