"""A model that is loaded in the background, or when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_runtime.errors import HunkError, ModelUnavailable
from agent_runtime.llm.interface import ChatModel, Merger

if TYPE_CHECKING:
    from engine.engine import EngineStats


class ModelSlot:
    """A model that loads later; `get` raises ModelUnavailable until `load` has run."""

    def __init__(self, name: str, load: Callable[[], Merger]) -> None:
        self.name = name
        self._load = load
        self._merger: Merger | None = None
        self._fault: HunkError | None = None

    def get(self) -> Merger:
        """Return the model; raises ModelUnavailable while it loads, or the error of loading."""
        return self.get_loaded()

    def get_loaded(self) -> Merger:
        """The model if it is there already; never waits, raises as `get` does."""
        if self._fault is not None:
            raise self._fault
        if self._merger is None:
            raise ModelUnavailable(f"model {self.name} is still being loaded; try again in some seconds")
        return self._merger

    def chat(self) -> ChatModel:
        """The model, to be asked for answers in a chat; raises what `get` raises."""
        return self.get().chat()

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded."""
        return self._merger is not None and self._fault is None

    def stats(self) -> EngineStats | None:
        """Return the engine's statistics, None if there is no engine; waits for a step of the model."""
        return None if self._merger is None else self._merger.stats()

    def load(self) -> Merger:
        """Load the model now, in this thread."""
        self._merger = self._load()
        return self._merger

    def close(self) -> None:
        """Close the model, if it has been loaded."""
        if self._merger is not None:
            self._merger.close()

    def load_in_background(self, on_loaded: Callable[[], None], on_fault: Callable[[HunkError], None]) -> None:
        """Load in a thread of its own and tell how it ended."""

        def work() -> None:
            try:
                self.load()
            except Exception as error:  # noqa: BLE001 -- the outermost loop of this thread: nobody else would hear of it
                self._fault = error if isinstance(error, HunkError) else to_model_unavailable(self.name, error)
                on_fault(self._fault)
            else:
                on_loaded()

        threading.Thread(target=work, name="load-model", daemon=True).start()


def to_model_unavailable(name: str, error: Exception) -> ModelUnavailable:
    """Convert an unexpected error of loading."""
    return ModelUnavailable(f"model {name} cannot be loaded: {type(error).__name__}: {error}")


class ModelOnDemand(ModelSlot):
    """Loads in the thread that needs the model first, and others wait for it. What fails is tried again."""

    def __init__(self, name: str, load: Callable[[], Merger]) -> None:
        super().__init__(name, load)
        self._loading = threading.Lock()

    def get(self) -> Merger:
        """The model; raises what loading raises."""
        with self._loading:
            if not self.is_ready:
                try:
                    return self.load()
                except HunkError:
                    raise
                except Exception as error:  # a file that cannot be mapped, memory that is not there
                    raise to_model_unavailable(self.name, error) from error
        return self.get_loaded()

    def close(self) -> None:
        """Close the model, and hold it no more."""
        with self._loading:
            super().close()
            self._merger = None
