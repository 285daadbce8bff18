"""The text that a model's chat template puts around messages, with gaps for what they say."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent_runtime.errors import CorruptModel
from agent_runtime.prompt.chat_template import ChatTemplate

_GAP = re.compile("\ue0f0(\\d+)\ue0f1")


def frame(template: ChatTemplate, roles: Sequence[str]) -> list[str]:
    """What stands before each message's text, and behind the last: one more than there are roles.

    Nothing that a message says goes through the template. Raises CorruptModel where the template leaves a message out,
    shows it twice, or does not know a role.
    """
    messages = [{"role": role, "content": f"\ue0f0{number}\ue0f1"} for number, role in enumerate(roles)]
    pieces = _GAP.split(template.render(messages))
    if pieces[1::2] != [str(number) for number in range(len(roles))]:
        raise CorruptModel("the model's chat template does not show every message once and in order")
    return pieces[::2]
