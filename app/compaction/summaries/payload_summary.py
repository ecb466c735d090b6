"""A summary by the agent's own model, which is sent a payload with one instruction.

1. There is one call, and one more with a stricter instruction. No chunk is made and no other model
   is called: what cannot be done so is done with a transcript. [summary.prefix]
2. The model has seen the payload, which is sent as it is. What could be a secret is masked in the
   instruction and in the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.compaction.summaries.answer import SummaryResult
from app.compaction.summaries.chunking import Chunk, TextGroup
from app.compaction.summaries.model_summary import ModelSummary
from app.compaction.summaries.payload_prefix import PrefixProblem, SentPayload
from app.compaction.summaries.prompt import PayloadPart, payload_instruction, prompt_hash
from app.compaction.summaries.transcript_limits import shortened_groups
from app.compaction.summaries.transcript_text import PartGroup, PartKind, TranscriptPart
from app.formats import PROVIDERS
from app.models.model_calls import ModelCall, NativeRequest

QUOTE_CHARS = 240
"""How much of a message is quoted, so that the model finds it."""
MAX_KEPT_QUOTES = 20
"""How many of the messages that stay inside of the part are quoted."""


@dataclass(slots=True)
class PayloadSummary(ModelSummary):
    """Makes one summary of a part of a payload.

    `groups` are the messages of the part, and of those inside it that stay.
    """

    payload: SentPayload = field(kw_only=True)

    def _chosen_models(self) -> list[str]:
        return [self.model]

    def _prompt_hash(self) -> str:
        return prompt_hash(self.request, of_payload=True)

    def _texts_of(
        self, groups: Sequence[PartGroup], source_tokens: int, others_tokens: int
    ) -> list[TextGroup]:
        """Return the whole texts: the model reads them in the payload."""
        return shortened_groups(groups, sys.maxsize, self.access.tokenizer.count)

    def _next_chunk(self) -> tuple[Chunk, list[TextGroup]]:
        """Return the whole part as one chunk, whose text is in the payload."""
        if self.payload.tokens > self._room_beside_instructions():
            detail = "The payload and a summary exceed the model's context window"
            raise self._unavailable(detail, PrefixProblem.TOO_LONG)
        return Chunk(
            "", sum(item.source_chars for group in self.remaining_texts for item in group)
        ), []

    def _call(self, chunk: str, strict: bool) -> ModelCall:
        max_tokens = self._answer_tokens()
        instruction = payload_instruction(
            self._part(),
            self.request,
            checklist=self._mask(self.checklist.text),
            strict=strict,
            max_words=self._max_words(),
        )
        payload = self.payload
        return ModelCall(
            self.model,
            ({"role": "user", "content": instruction},),
            max_tokens,
            self.access.settings.timeout_seconds,
            self.run.tenant_id,
            self.run.infos.get(self.model),
            NativeRequest(
                payload.format,
                PROVIDERS[payload.format].with_instruction(payload.body, instruction, max_tokens),
                payload.build_id,
                payload.tokens,
            ),
        )

    def _accepted(self, answer: SummaryResult) -> SummaryResult:
        """Mask the answer: a transcript would have been masked before (rule 2)."""
        retain = self._mask(answer.retain) if answer.retain is not None else None
        return replace(answer, text=self._mask(answer.text), retain=retain)

    def _part(self) -> PayloadPart:
        parts = [part for group in self.groups for part in group]
        replaced = [part for part in parts if part.kind is not PartKind.VERBATIM]
        kept = [part for part in parts if part.kind is PartKind.VERBATIM][:MAX_KEPT_QUOTES]
        return PayloadPart(
            self._quote(replaced[0]) if replaced else "",
            self._quote(replaced[-1]) if replaced else "",
            tuple(map(self._quote, kept)),
            has_earlier=bool(self.summary),
            has_retained=bool(self.retain),
        )

    def _quote(self, part: TranscriptPart) -> str:
        text = self._mask(part.text or part.full_text)
        return text if len(text) <= QUOTE_CHARS else f"{text[:QUOTE_CHARS].rstrip()}…"
