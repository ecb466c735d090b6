"""Pages of a tenant's conversations (rules in `app.conversations.listing_filters`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.common.pages import Bound, Page
from app.conversations.budget_status import BudgetStatus, read_budgets
from app.conversations.conversation import Conversation
from app.conversations.listing_filters import (
    MAX_SCANNED,
    MAX_TRIED,
    ConversationFilter,
    ListedTotals,
    Place,
    Places,
)
from app.conversations.listing_repository import ConversationListRepository
from app.conversations.settings_resolver import SettingsResolver
from app.repositories import Repositories


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """A page of a list; the list continues after the place `end`, None on the last page.

    `usage` is by id; it is empty unless it was requested.
    """

    items: tuple[Conversation, ...]
    end: Place | None = None
    usage: Mapping[str, ListedUsage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListedUsage:
    """What a list shows of a conversation's usage; `status` is None without a context window."""

    status: BudgetStatus | None
    totals: ListedTotals


async def read_usage(
    resolver: SettingsResolver,
    session: Repositories,
    listed: Sequence[tuple[Conversation, ListedTotals]],
) -> Mapping[str, ListedUsage]:
    """Return the usage of conversations by their ids."""
    statuses = await read_budgets(resolver, session, [item for item, _ in listed])
    return {
        item.conversation_id: ListedUsage(statuses.get(item.conversation_id), totals)
        for item, totals in listed
    }


async def list_conversations(
    session: Repositories,
    resolver: SettingsResolver,
    tenant_id: str,
    wanted: ConversationFilter,
    limit: int,
    before: Place | None,
    bound: Bound,
    *,
    with_usage: bool = False,
) -> ConversationPage:
    """Return the page after the place `before`; it may have fewer items than `limit`."""
    # One more place shows whether the list continues.
    repository = session.conversation_list
    found = await find_places(repository, tenant_id, wanted, before, limit + 1)
    places = found.items[:limit]
    end = found.end
    if len(found.items) > limit:
        end = places[-1]
    ids = [conversation_id for _, conversation_id in places]
    usage: Mapping[str, ListedUsage] = {}
    if with_usage:
        listed = await repository.by_ids_with_usage(tenant_id, ids, resolver.default_model, bound)
        usage = await read_usage(resolver, session, listed)
        page = Page((item for item, _ in listed), has_more=listed.has_more)
    else:
        page = await repository.by_ids(tenant_id, ids, resolver.default_model, bound)
    if page.has_more:
        shown = {item.conversation_id: item for item in page}
        end = next(place for place in reversed(places) if place[1] in shown)
    return ConversationPage(tuple(page), end, usage)


async def find_places(
    repository: ConversationListRepository,
    tenant_id: str,
    wanted: ConversationFilter,
    before: Place | None,
    limit: int,
) -> Places:
    """Return up to `limit` places after the place `before`, by the index of rule 1 or 2."""
    scanned = MAX_TRIED if wanted.labels else MAX_SCANNED
    found = await repository.places(tenant_id, wanted, before, limit, scanned)
    if not wanted.labels or found.end is None:
        return found
    labelled = await repository.labelled_places(tenant_id, wanted, before, limit)
    if labelled is not None:
        return labelled
    return await repository.places(tenant_id, wanted, before, limit, MAX_SCANNED)
