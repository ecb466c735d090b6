"""Types of ids, so that a type checker tells them apart."""

from __future__ import annotations

from typing import NewType

AgentId = NewType("AgentId", str)
ConversationId = NewType("ConversationId", str)
"""A UUID in lower case, the key of its rows; `app.common.public_ids` tells more."""
MessageId = NewType("MessageId", str)
"""Unique in its conversation."""
