"""The place of a model that is loaded when the first edit or question needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from agent_runtime.apply.merger import Merger
from agent_runtime.errors import HunkError
from agent_runtime.model_merge.slot import ModelSlot, as_fault


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
                    raise as_fault(self.name, error) from error
        return self.loaded()

    def close(self) -> None:
        """Close the model, and hold it no more."""
        with self._loading:
            super().close()
            self._merger = None
