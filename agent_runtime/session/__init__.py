"""Sessions: the context of an agent's conversation about a folder of files, kept across turns."""

from agent_runtime.session.registry import Sessions
from agent_runtime.session.session import PREAMBLE, Session
from agent_runtime.session.types import Answer, FileState, ReadFile, SeenFile, SessionState

__all__ = [
    "PREAMBLE",
    "Answer",
    "FileState",
    "ReadFile",
    "SeenFile",
    "Session",
    "SessionState",
    "Sessions",
]
