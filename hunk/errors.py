"""The exceptions of the SDK; `HunkError` is the root of all."""

from agent_runtime.errors import *  # noqa: F403 -- the same names at their public place
