"""A stand-in for a model that chats, for answers and faults that a real one cannot be brought to give on demand."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from agent_runtime.errors import Cancelled, HunkError
from agent_runtime.llm.interface import ChatAnswer, ChatRequest
from agent_runtime.request_context import Piece, ProgressListener, RequestContext
from agent_runtime.types import SourceUsage, Usage
from tests.agent_runtime.scripted import ScriptedMerger

USAGE = Usage(
    prompt=20,
    cached=12,
    recomputed=8,
    completion=7,
    drafted=9,
    accepted=5,
    rejected=4,
    forwards=3,
    by_source={"prediction": SourceUsage(6, 4, 2), "update": SourceUsage(3, 1, 2)},
)


@dataclass
class ScriptedChat:
    """Writes `pieces`, one after the other; with `hold`, waits for it behind the first. Ends with `fault`, if any."""

    pieces: tuple[str, ...] = ("Hel", "lo, ", "world")
    fault: HunkError | None = None
    hold: threading.Event | None = None
    name: str = "scripted"
    max_seq_len: int = 4096
    seen: list[ChatRequest] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: ChatRequest, context: RequestContext, progress: ProgressListener) -> ChatAnswer:
        """The scripted answer."""
        self.seen.append(request)
        context.release_slot()
        progress.on_start()
        own = threading.Event()  # `cancelled` is set when any request is over
        for event in (own, self.cancelled):
            context.cancel.add_callback(event.set)
        for number, piece in enumerate(self.pieces or ("",), start=1):
            progress.on_tokens(number)
            if progress.wants_text and piece:
                progress.on_pieces(0, [Piece(piece, "generated")])
            while self.hold is not None and not self.hold.wait(0.01):
                if own.is_set():
                    raise Cancelled("whoever asked has left")
        if self.fault is not None:
            raise self.fault
        timings = {"prompt_ms": 1.0, "prefill_ms": 2.0, "decode_ms": 3.0, "total_ms": 6.0}
        return ChatAnswer("".join(self.pieces), "stop", USAGE, timings)


@dataclass
class ChattingMerger(ScriptedMerger):
    """A scripted merger that also chats."""

    chatting: ScriptedChat = field(default_factory=ScriptedChat)

    def chat(self) -> ScriptedChat:
        """Who chats."""
        return self.chatting
