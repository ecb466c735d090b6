"""Records the start of an epoch, and keeps the rendered history for later builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.domain.common import json_text
from app.domain.conversations.epoch import Epoch
from app.domain.payload.epochs import BuildName, payload_stream_of, requested_window
from app.domain.prompt.resolved_settings import digest
from app.services.payload.payload_cache import CachedPayload
from app.services.payload.pipeline.dependencies import BuildDependencies
from app.services.payload.pipeline.epoch import EpochChoice
from app.services.payload.pipeline.state import BuildState


@dataclass(frozen=True, slots=True)
class Recorded:
    """A payload with its epoch and build id. No caller holds a payload of a new epoch."""

    state: BuildState
    rendered: CachedPayload
    epoch: Epoch
    is_new_epoch: bool
    through_seq: int
    build_id: str


async def record(deps: BuildDependencies, state: BuildState, choice: EpochChoice) -> Recorded:
    """Write the epoch unless it is the last one. Raises Restart when another build was first."""
    rendered, items = state.rendered, state.items
    assert rendered is not None and items is not None
    is_new = choice.last is None or choice.reason is not None
    epoch = choice.last
    if epoch is None or choice.reason is not None:
        epoch = _new_epoch(deps, state, choice)
        async with deps.database.session() as session:
            if not await session.contexts.add_epoch(
                state.attempt.conversation_id, epoch, choice.start.view, _texts(state)
            ):
                raise state.restart()
    rendered.epoch_id, rendered.start_json = epoch.epoch_id, epoch.start_json
    deps.cache.keep(state.attempt.cache_key, rendered)
    epoch = replace(epoch, reason=choice.reason)
    through_seq = max(items.rendered_through, state.read.conversation.state.head_seq)
    tail = await _record_tail(deps, state, rendered)
    build_id = BuildName(epoch.epoch_id, through_seq, tail).build_id
    return Recorded(state, rendered, epoch, is_new, through_seq, build_id)


def _new_epoch(deps: BuildDependencies, state: BuildState, choice: EpochChoice) -> Epoch:
    resolved, settings = state.resolved, state.attempt.settings
    visible = state.read.conversation.state
    return Epoch(
        epoch=choice.last.epoch + 1 if choice.last is not None else 1,
        epoch_id=deps.new_id(),
        payload_stream=payload_stream_of(settings, resolved.model or ""),
        format=settings.format,
        window=requested_window(settings),
        reason=choice.reason,
        start_seq=visible.head_seq,
        view_version=visible.view_version,
        start_json=choice.start.as_json(),
        sections_hash=resolved.sections_hash,
        tools_hash=resolved.tools_hash,
        policy_hash=resolved.policy_hash,
    )


def _texts(state: BuildState) -> Mapping[str, str]:
    """Return the texts that an epoch refers to, by their hashes."""
    texts = dict(state.resolved.texts)
    if state.texts_before_history:
        texts[state.dynamic_hash] = json_text.dumps(state.texts_before_history)
    return texts


async def _record_tail(
    deps: BuildDependencies, state: BuildState, rendered: CachedPayload
) -> str | None:
    """Store the texts of the tail once, and return their hash; None without any."""
    if not state.tail.texts:
        return None
    body = json_text.dumps(state.tail.texts)
    hash = digest(body)
    if rendered.tail_hash != hash:
        async with deps.database.session() as session:
            await session.contexts.add_text(state.attempt.conversation_id, hash, body)
        rendered.tail_hash = hash
    return hash
