"""Sessions: an agent's conversation with the model about files, kept from turn to turn."""

from agent_runtime.session.prompt import PromptLayout, SessionPrompt
from agent_runtime.session.registry import SessionRegistry
from agent_runtime.session.session import PREAMBLE, ServerSession
from agent_runtime.session.types import FileState, HistoryMessage, ReadFile, SeenFile, SessionAnswer, SessionState

__all__ = [
    "PREAMBLE",
    "FileState",
    "HistoryMessage",
    "PromptLayout",
    "ReadFile",
    "SeenFile",
    "ServerSession",
    "SessionAnswer",
    "SessionPrompt",
    "SessionRegistry",
    "SessionState",
]
