"""The prompt of an apply: its forms, and its tokens."""

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
