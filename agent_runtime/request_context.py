"""What a request carries through the service: whose it is, its priority, and its cancellation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from agent_runtime.access import LOCAL, Principal
from agent_runtime.errors import Cancelled, HunkError


def _find_no_fault() -> HunkError | None:
    return None


def _release_nothing() -> None:
    """Release no CPU slot: the work holds none."""


class CancelToken:
    """Cancels the work for one request. Used from any thread."""

    def __init__(self, find_fault: Callable[[], HunkError | None] = _find_no_fault) -> None:
        """`find_fault` may give another reason to end the work, such as the end of the service; it is polled."""
        self._find_fault = find_fault
        self._lock = Lock()
        self._is_cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether the work has to end."""
        return self.fault is not None

    @property
    def fault(self) -> HunkError | None:
        """The error that the work has to end with, None while it may go on."""
        return self._find_fault() or (Cancelled("whoever asked has left") if self._is_cancelled else None)

    def cancel(self) -> None:
        """Cancel the work, and call the callbacks that were added; a second call does nothing."""
        with self._lock:
            self._is_cancelled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Have `cancel` call this; if it was called already, call it now."""
        with self._lock:
            is_cancelled = self._is_cancelled
            if not is_cancelled:
                self._callbacks.append(callback)
        if is_cancelled:
            callback()

    def raise_if_cancelled(self) -> None:
        """Raise the error that the work has to end with, if it has to."""
        if (fault := self.fault) is not None:
            raise fault

    def make_child(self) -> CancelToken:
        """Return a token that is cancelled with this one, and that can be cancelled alone."""
        child = CancelToken(lambda: self.fault)
        self.add_callback(child.cancel)
        return child


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a request carries from the middleware to the engine.

    flow: whose share of the model and of the processor the request takes: a tenant, or a network where the service
    knows no tokens. priority: the engine admits smaller numbers first (`quotas.FairQueue`). release_slot: gives the
    CPU slot back that the work holds; a request that waits for the model must not hold one.
    """

    principal: Principal = LOCAL
    flow: str = ""
    priority: int = 0
    request_id: str = ""
    cancel: CancelToken = field(default_factory=CancelToken)
    release_slot: Callable[[], None] = _release_nothing

    @property
    def tenant(self) -> str:
        """The tenant that sent the request."""
        return self.principal.tenant
