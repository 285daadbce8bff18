"""What broke the prefix that two prompts have in common: where, what it was, what it cost, what to do about it."""

from agent_runtime.doctor.diagnosis import Diagnosis, diagnose
from agent_runtime.doctor.transcripts import PromptText, read_prompt, render_prompt

__all__ = ["Diagnosis", "PromptText", "diagnose", "read_prompt", "render_prompt"]
