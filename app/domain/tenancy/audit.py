"""The audit: who has changed keys and tenants, and who has deleted data.

An entry is written in the transaction of the change that it records, so that there is none without
the other. It has ids, numbers and names of keys, never content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class AuditAction(StrEnum):
    """What was done; the subject is a key, a tenant, or what was deleted."""

    KEY_CREATED = "key_created"
    KEY_ROTATED = "key_rotated"
    KEY_EXPIRY_CHANGED = "key_expiry_changed"
    KEY_REVOKED = "key_revoked"
    TENANT_LIMITED = "tenant_limited"
    TENANT_DISABLED = "tenant_disabled"
    TENANT_ENABLED = "tenant_enabled"
    TENANT_DELETION_BEGUN = "tenant_deletion_begun"
    TENANT_DELETED = "tenant_deleted"
    MESSAGE_REDACTED = "message_redacted"
    CONVERSATION_DELETED = "conversation_deleted"
    AGENT_DELETED = "agent_deleted"
    SNAPSHOT_DELETED = "snapshot_deleted"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who has done it: the key of a request, or the account that ran a command.

    Neither is set for requests of a service without keys.
    """

    key_id: str | None = None
    account: str | None = None


NO_ACTOR = Actor()


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A stored entry."""

    audit_id: str
    at: datetime
    tenant_id: str
    action: str
    subject: str
    key_id: str | None
    account: str | None
    details: Mapping[str, Any]
