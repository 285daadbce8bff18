"""Sessions: conversations of agents with the model about files."""

from agent_runtime.session.files import FileState, ReadFile, SeenFile
from agent_runtime.session.prompt import HistoryMessage, PromptLayout, SessionPrompt
from agent_runtime.session.session import PREAMBLE, ServerSession, SessionAnswer, SessionRegistry, SessionState

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
