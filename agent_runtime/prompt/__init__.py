"""The prompt of one apply: forms that it can take, and the tokens that a form makes of a file and an edit."""

from agent_runtime.prompt.builder import ApplyPrompt, TextEncoder, build_prompt, shared_ids
from agent_runtime.prompt.forms import DEFAULT, FORMS, PromptForm, form_called

__all__ = ["DEFAULT", "FORMS", "ApplyPrompt", "PromptForm", "TextEncoder", "build_prompt", "form_called", "shared_ids"]
