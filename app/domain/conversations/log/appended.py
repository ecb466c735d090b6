"""A batch that was just appended, as a build in the same request uses it instead of reading it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.common.messages import FormatName
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.log.draft import Draft
from app.domain.conversations.log.row import LogRow


@dataclass(frozen=True, slots=True)
class Appended:
    """The messages from `first_seq` on, and the conversation with exactly these at its end."""

    conversation: Conversation
    format: FormatName
    drafts: Sequence[Draft]
    ids: Sequence[str]
    first_seq: int

    def rows(self, *, as_chat: bool) -> list[LogRow]:
        """Return the rows as a build in the format openai_chat, or in another one, reads them."""
        rows = []
        for offset, (draft, message_id) in enumerate(zip(self.drafts, self.ids, strict=True)):
            is_item = as_chat and not draft.has_media and not draft.reasoning_tokens
            output = draft.stored_output
            rows.append(
                LogRow(
                    id=message_id,
                    seq=self.first_seq + offset,
                    role=draft.role,
                    tokens=draft.tokens,
                    reasoning_tokens=draft.reasoning_tokens,
                    call_ids=draft.call_ids,
                    has_media=draft.has_media,
                    format=FormatName.OPENAI_CHAT if is_item else self.format,
                    text=draft.fragment if is_item and draft.fragment is not None else draft.body,
                    stored_output=output.as_json() if output is not None else None,
                )
            )
        return rows
