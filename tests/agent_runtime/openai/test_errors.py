"""Faults below /v1 as OpenAI's clients read them, whoever in the service finds them."""

from __future__ import annotations
