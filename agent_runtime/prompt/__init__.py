"""The prompt of one apply: forms that it can take, and the tokens that a form makes of a file and an edit."""

from agent_runtime.prompt.builder import ApplyPrompt, TextEncoder, build_prompt, encode_shared_prefix
from agent_runtime.prompt.forms import DEFAULT, FORMS, PromptForm, find_form

__all__ = [
    "DEFAULT",
    "FORMS",
    "ApplyPrompt",
    "PromptForm",
    "TextEncoder",
    "build_prompt",
    "encode_shared_prefix",
    "find_form",
]
