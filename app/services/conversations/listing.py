"""Pages of a tenant's conversations (rules in `app.domain.conversations.listing`)."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.common.pages import Bound
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.listing import (
    MAX_SCANNED,
    TRIED_PER_ITEM,
    ConversationFilter,
    ListOrder,
    Place,
    Places,
    ordered_lead,
    other_leads,
    rarest,
)
from app.services.ports import ConversationListRepository


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """A page of a list; the list continues after the place `end`, None on the last page."""

    items: tuple[Conversation, ...]
    end: Place | None = None


async def list_conversations(
    repository: ConversationListRepository,
    tenant_id: str,
    wanted: ConversationFilter,
    order: ListOrder,
    limit: int,
    before: Place | None,
    default_model: str | None,
    bound: Bound,
) -> ConversationPage:
    """Return the page after the place `before`; it may have fewer items than `limit`."""
    # One more place shows whether the list continues.
    found = await find_places(repository, tenant_id, wanted, order, before, limit + 1)
    places = found.items[:limit]
    end = found.end
    if len(found.items) > limit:
        end = places[-1]
    page = await repository.by_ids(
        tenant_id, [conversation_id for _, conversation_id in places], default_model, bound
    )
    if page.has_more:
        shown = {item.conversation_id: item for item in page}
        end = next(place for place in reversed(places) if place[1] in shown)
    return ConversationPage(tuple(page), end)


async def find_places(
    repository: ConversationListRepository,
    tenant_id: str,
    wanted: ConversationFilter,
    order: ListOrder,
    before: Place | None,
    limit: int,
) -> Places:
    """Return up to `limit` places, by the index that rule 2 chooses."""
    lead = ordered_lead(wanted, order)
    others = other_leads(wanted, order)
    if others in ([], [lead]):
        return await repository.places(tenant_id, wanted, order, lead, before, limit, MAX_SCANNED)
    tried = TRIED_PER_ITEM * limit
    found = await repository.places(tenant_id, wanted, order, lead, before, limit, tried)
    if found.end is None:
        return found
    counts = {}
    for other in others:
        counts[other] = await repository.count(tenant_id, wanted, other)
        if counts[other] <= limit:
            break
    lead = rarest(counts) or lead
    return await repository.places(tenant_id, wanted, order, lead, before, limit, MAX_SCANNED)
