"""Explains where the common prefix of two prompts ends, why, what that costs, and how to avoid it."""

from agent_runtime.doctor.diagnosis import Diagnosis, diagnose
from agent_runtime.doctor.transcripts import PromptText, read_prompt, render_prompt

__all__ = ["Diagnosis", "PromptText", "diagnose", "read_prompt", "render_prompt"]
