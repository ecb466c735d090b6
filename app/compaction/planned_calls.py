"""The model calls that a compaction would make, for a dry run.

1. A dry run makes its summaries as a compaction does. Only the gateway is another: it notes each
   call and answers with a placeholder, so that the noted prompts are those that would be sent.
2. A placeholder is half as long as its answer may be, like every expected summary, so that what is
   made of it has the usual size: the tokens of later calls, their chunks, merges of summaries. It
   is shown without its filling.
3. Of a request with a payload the instruction is kept: the payload can be read by its build.
4. The prompts of the first calls are kept, up to a number of bytes.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field, replace
from typing import cast

from app.conversations.compaction_results import PlannedCall, PromptMessage
from app.formats.message import LOG_FORMAT
from app.models.model_calls import Completion, ModelCall
from app.models.tokens import Tokenizer, count_payload_messages
from app.models.usage import TokenUsage
from app.policy.policy import SummaryInput

CALL_BYTES = 256
"""What a call takes in an answer besides its prompt."""
_RETAIN = "<retain>"
"""In the prompt where a retain section is requested; in a conversation it would be escaped."""
_FILLING = "\n…"
_FILLED = 64
"""So many lines are counted to know what one takes."""
_PLACEHOLDER = re.compile(r"\[the answer of call (\d+)\]")
_FILLED_LINES = re.compile(rf"(?:{_FILLING}){{2,}}")


@dataclass(slots=True)
class CallNotes:
    """A gateway that notes calls instead of making them (rule 1).

    `calls` are the noted ones whose prompts fit `max_bytes` together, `count` is the number of all.
    """

    tokenizer: Tokenizer
    max_bytes: int
    count: int = 0
    calls: list[PlannedCall] = field(default_factory=list)

    async def complete(self, call: ModelCall) -> Completion:
        """Note a call and return a placeholder as its answer; never raises."""
        return await asyncio.to_thread(self._note, call)

    def _note(self, call: ModelCall) -> Completion:
        self.count += 1
        prompt = "\n".join(message["content"] for message in call.messages)
        tokens = count_payload_messages(LOG_FORMAT, call.messages, self.tokenizer.count)
        native = call.native
        if native is not None:
            tokens += native.prefix_tokens
        completion = Completion(
            self._answer(call, wants_retain=_RETAIN in prompt),
            "stop",
            TokenUsage(tokens, call.max_tokens),
        )
        found = {int(number) for number in _PLACEHOLDER.findall(prompt)}
        earlier = tuple(sorted(number for number in found if 0 < number < self.count))
        messages = call.messages
        if earlier:
            messages = tuple(
                {**message, "content": _FILLED_LINES.sub("", message["content"])}
                for message in messages
            )
        self.max_bytes -= CALL_BYTES + sum(
            len(message["content"].encode("utf-8", "replace")) for message in messages
        )
        if self.max_bytes >= 0:
            planned = PlannedCall(
                call.model,
                cast("tuple[PromptMessage, ...]", messages),
                tokens,
                call.max_tokens,
                completion.cost(call.info),
                earlier,
            )
            if native is not None:
                prefix = native.prefix_tokens
                usage = TokenUsage(max(0, tokens - prefix), call.max_tokens, 0, prefix)
                planned = replace(
                    planned,
                    summary_input=SummaryInput.PREFIX,
                    build_id=native.build_id,
                    prefix_tokens=prefix,
                    cached_cost_usd=replace(completion, usage=usage).cost(call.info),
                )
            self.calls.append(planned)
        return completion

    def _answer(self, call: ModelCall, *, wants_retain: bool) -> str:
        """Return a placeholder with as many lines as expected, and a tag for each section."""
        line_tokens = self.tokenizer.count(_FILLING * _FILLED) / _FILLED
        lines = int(call.max_tokens / 2 / max(line_tokens, 1)) // (1 + wants_retain)
        text = f"[the answer of call {self.count}]{_FILLING * lines}"
        return f"<retain>{text}</retain><summary>{text}</summary>"
