"""The prompt of an agent's turn, laid out so that the next turn's differs from it late and little."""

from agent_runtime.context.prompt import SessionContext
from agent_runtime.context.types import ContextMode, ContextPrompt, HistoryMessage, PromptPart

__all__ = ["ContextMode", "ContextPrompt", "HistoryMessage", "PromptPart", "SessionContext"]
