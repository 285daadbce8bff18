"""Sessions: the context of an agent's conversation about a folder of files, kept across turns."""

from agent_runtime.session.registry import SessionRegistry
from agent_runtime.session.session import PREAMBLE, ServerSession
from agent_runtime.session.types import FileState, ReadFile, SeenFile, SessionAnswer, SessionState

__all__ = [
    "PREAMBLE",
    "FileState",
    "ReadFile",
    "SeenFile",
    "ServerSession",
    "SessionAnswer",
    "SessionRegistry",
    "SessionState",
]
