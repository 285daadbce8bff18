"""A session as an agent would hold it that keeps files in its prompt: whole, as they are now, before the conversation.

The prompts are those of `agent_runtime.session`, in a window of 16k tokens. A file comes in when it is read whole or
written, and follows the session's edits; `FILES` tokens are for files, and where they are too few the files that were
used least lately go, a good part at once. The conversation, compacted as in `compaction`, has a line in the place of
what was read. Sessions without a tool that reads whole files have no such prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent_runtime.doctor.transcripts import RecordedMessage as Recorded
from agent_runtime.doctor.transcripts import ToolCall
from agent_runtime.prompt.chat_template import ChatTemplate
from agent_runtime.session import HistoryMessage, PromptLayout
from agent_runtime.types import ReuseName
from benchmarks.reuse.compaction import Compactor, Limits
from benchmarks.reuse.counting import Prompt
from benchmarks.reuse.prompts import Prompts
from benchmarks.reuse.sessions import Message, Session

FILES, FILES_LOW_WATER, LONGEST_FILE = 8_192, 6_144, 4_608
"""Tokens of all files at most, of what is left when some go, and of one file."""

HISTORY = Limits(budget=6_144, low_water=3_072, cap=1_536)
"""Tokens of the conversation; what is left of the window is for notes, and 1,024 for the answer."""

SEEN_ABOVE = "[{} stands among the files above, as it is now.]"

CHATML = ChatTemplate(
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(slots=True)
class Files:
    """The files that are in the prompt, by path, those used least lately first."""

    prompts: Prompts
    texts: dict[str, str] = field(default_factory=dict)

    def took_place(self, call: ToolCall, result: str) -> bool:
        """Follow a call of a tool; whether its result is a file that is in the prompt now."""
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
        path = str(arguments.get("path", ""))
        if call.name == "edit" and path in self.texts:
            old, new = str(arguments.get("oldText", "")), str(arguments.get("newText", ""))
            if old and self.texts[path].count(old) == 1:
                self._hold(path, self.texts[path].replace(old, new))
            return False
        if call.name == "write":
            self._hold(path, str(arguments.get("content", "")))
            return False
        if call.name != "read" or not path:
            return False
        if "offset" in arguments or "limit" in arguments:
            if path in self.texts:
                self.texts[path] = self.texts.pop(path)  # used just now
            return False
        return self._hold(path, result)

    def _hold(self, path: str, text: str) -> bool:
        self.texts.pop(path, None)
        if not text or self._size(text) > LONGEST_FILE:
            return False
        self.texts[path] = text
        if sum(map(self._size, self.texts.values())) > FILES:
            while sum(map(self._size, self.texts.values())) > FILES_LOW_WATER and len(self.texts) > 1:
                del self.texts[next(iter(self.texts))]
        return True

    def _size(self, text: str) -> int:
        return self.prompts.size(Message("tool", text))


def workspace_prompts(session: Session, prompts: Prompts, mode: ReuseName) -> list[Prompt]:
    """The prompts of a session's turns, none where it never reads a whole file."""
    files, compactor = Files(prompts), Compactor(prompts.size, HISTORY)
    context = PromptLayout(CHATML, prompts.tokenizer, preamble=session.turns[0].messages[0].text)
    made: list[Prompt] = []
    before: set[tuple[int, ...]] = set()
    held_any = False  # whether there was a file in any prompt
    for messages, answer in _conversation(session, files):
        held_any = held_any or bool(files.texts)
        num_compactions = compactor.num_compactions
        shown = compactor.prompt(messages)
        history = [HistoryMessage(each.role, each.text) for each in shown[1:]]
        if not history:
            continue
        found = context.build_prompt(dict(files.texts), history[:-1], history[-1].text, mode, role=history[-1].role)
        segments = list(found.segments)
        own = {tuple(segment.token_ids) for segment in segments}
        new = sum(len(ids) for ids in own - before)
        answer_ids = prompts.answer(answer) if answer is not None else []
        made.append(Prompt(segments, answer_ids, new, compactor.num_compactions > num_compactions))
        before = own
    return made if held_any else []


def _conversation(session: Session, files: Files) -> Iterator[tuple[list[Message], Message | None]]:
    """Each turn's messages, in which what was read whole is only named; `files` are as they are at that turn."""
    seen: list[Recorded] = []
    said: list[Message] = [session.turns[0].messages[0]]
    asked: list[ToolCall] = []
    for turn, recorded in zip(session.turns, session.recorded, strict=True):
        own = (
            recorded.messages[1:] if recorded.messages and recorded.messages[0].role == "system" else recorded.messages
        )
        for place in range(len(seen), len(own)):
            message, shown = own[place], turn.messages[1 + place]
            if message.role == "assistant":
                asked = list(message.tool_calls)
            elif message.role == "tool" and asked:
                call = asked.pop(0)
                if files.took_place(call, message.text):
                    shown = replace(shown, text=SEEN_ABOVE.format(shown.path))
            said.append(shown)
            seen.append(message)
        yield list(said), turn.answer
