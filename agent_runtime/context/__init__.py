"""The prompt of an agent's turn, laid out so that the next turn's differs from it late and little."""

from agent_runtime.context.prompt import PromptLayout
from agent_runtime.context.types import ContextMode, HistoryMessage, PromptPart, SessionPrompt

__all__ = ["ContextMode", "HistoryMessage", "PromptLayout", "PromptPart", "SessionPrompt"]
