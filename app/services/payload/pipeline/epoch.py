"""Decides whether a payload continues the last epoch of its stream, and records a new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.domain.common import json_text
from app.domain.common.messages import FormatName, Role
from app.domain.common.policy import StrategyName
from app.domain.conversations.epoch import Epoch
from app.domain.formats.reasoning_families import UNBOUND, accepted_families
from app.domain.payload.epochs import (
    PROVIDER_COMPACTED,
    BuildId,
    EpochStart,
    break_reason,
    epoch_start_from,
    model_in,
    payload_stream_of,
    requested_window,
)
from app.domain.prompt.resolved_settings import digest
from app.services.payload.payload_cache import CachedPayload
from app.services.payload.pipeline.rendering import needed_agent_tools
from app.services.payload.pipeline.state import REASONING_DROPPED, BuildDependencies, BuildState
from app.services.prompt.budget_status import stored_usage_of


@dataclass(frozen=True, slots=True)
class EpochChoice:
    """The epoch of a payload. `break_reason` says why it is not the last one, None where it is.

    `kept_tools` are the agent tools of the last epoch that stay. With `leaves_prefix` the payload
    does not begin as those of the last epoch do.
    """

    last_epoch: Epoch | None
    start: EpochStart
    break_reason: str | None
    kept_tools: tuple[str, ...]
    leaves_prefix: bool = False

    def matches(self, state: BuildState) -> bool:
        """Whether the chosen start has the tools and dynamic texts of the rendered payload."""
        return (state.tools, state.dynamic_hash) == (self.start.tools, self.start.dynamic_hash)


def choose_epoch(state: BuildState, previous: EpochChoice | None = None) -> EpochChoice:
    """Return the epoch that the payload belongs to; `previous` is what this build chose before.

    A build that left the prefix of the last epoch does not return to it. Otherwise it could
    alternate for ever: without its reasoning a payload may be below `notice_at`, so that it has no
    usage note; then the prefix of the last epoch fits again, with the reasoning.
    """
    last_epoch, format = state.input.epoch, state.format
    if last_epoch is None:
        replays_all = (state.view.is_whole or _begins_with_item(state)) and not (
            _has_other_reasoning(state) or state.drops_reasoning
        )
        reason = "model_changed" if state.input.other_streams else None
        min_reasoning_after, last_tools = 0, None
    else:
        last_start = epoch_start_from(last_epoch.start_json)
        last_tools = last_start.tools
        kept_tools = last_start.tools.agent_tools
        new_start = _new_start(state, kept_tools)
        window = requested_window(state.attempt.settings)
        conversation_state = state.input.conversation.state
        current = (state.resolved, conversation_state, window, state.input.pins)
        reason = break_reason(last_epoch, last_start, new_start, *current)
        has_left = previous is not None and previous.leaves_prefix
        if not (state.drops_reasoning or has_left):
            if reason is None:
                return EpochChoice(last_epoch, last_start, None, kept_tools)
            with_last_factor = replace(new_start, factor=last_start.factor)
            # Where only the factor changed, the prefix stays, and so does its reasoning.
            if break_reason(last_epoch, last_start, with_last_factor, *current) is None:
                view = last_start.view
                start = _with_reasoning_limit(new_start, view.reasoning_after, view.reasoning_of)
                return EpochChoice(last_epoch, start, reason, kept_tools)
        previous_reason = previous.break_reason if previous is not None else None
        reason = reason or previous_reason or REASONING_DROPPED
        replays_all = False
        min_reasoning_after = last_start.view.reasoning_after
    reasoning_after = 0 if replays_all else max(min_reasoning_after, _reasoning_after(state))
    item, own_start = state.view.sent_item, _new_start(state, ())
    is_only_change = reason == PROVIDER_COMPACTED and own_start.tools == last_tools
    if item is not None and is_only_change and _begins_with_item(state):
        # The model made what follows its item with the item as its only history.
        reasoning_after = max(min_reasoning_after, item.seq - 1)
    start = _with_reasoning_limit(
        own_start, reasoning_after, state.resolved.accepted_reasoning(format)
    )
    return EpochChoice(last_epoch, start, reason, (), leaves_prefix=last_epoch is not None)


def _new_start(state: BuildState, kept_tools: tuple[str, ...]) -> EpochStart:
    agent_tools = needed_agent_tools(state, kept_tools) if state.items is not None else kept_tools
    return EpochStart(
        state.view,
        state.limits.total,
        state.limits.max_output_tokens,
        state.tools.with_agent_tools(agent_tools),
        state.lasting_degraded,
        state.resolved.factor,
        state.dynamic_hash,
    )


def _with_reasoning_limit(
    start: EpochStart, reasoning_after: int, reasoning_of: tuple[str, ...]
) -> EpochStart:
    """Return a start whose payloads replay only the reasoning of these makers after this seq."""
    view = replace(start.view, reasoning_after=reasoning_after, reasoning_of=reasoning_of)
    return replace(start, view=view)


def _begins_with_item(state: BuildState) -> bool:
    """Whether the history is what the model saw when it made the messages after its item."""
    view, item = state.view, state.view.sent_item
    if item is None or item.model != state.resolved.model or state.drops_reasoning:
        return False
    is_alone = not (state.opening.texts or view.unhidden_seqs or view.summary_texts())
    return is_alone and not view.is_reduced_inside


def _has_other_reasoning(state: BuildState) -> bool:
    """Whether another model may have made the reasoning that this stream would replay."""
    streams, format = state.input.other_streams, state.format
    if format is not FormatName.OPENAI_CHAT:
        return bool(streams)
    family = state.resolved.accepted_reasoning(format)[:1]
    return any(
        accepted_families(model_in(stream), format)[:1] == family != () for stream in streams
    )


def _reasoning_after(state: BuildState) -> int:
    """Return after which seq reasoning is replayed where the prefix differs from before.

    Signed reasoning is bound to the prefix that it was made after. Plain text is not: the current
    turn keeps it, because some providers refuse a tool loop without it.
    """
    head_seq, format = state.input.conversation.state.head_seq, state.format
    accepts = state.resolved.accepted_reasoning(format)
    if format is not FormatName.OPENAI_CHAT or state.drops_reasoning:
        return head_seq
    if not accepts:
        return 0
    if accepts[0] not in UNBOUND or _has_other_reasoning(state):
        return head_seq
    user_seqs = (item.seq for item in reversed(state.entries) if item.role is Role.USER)
    return next(user_seqs, head_seq)


MIN_UNSTORED_CHANGE = 64
"""A smaller change inside an epoch is not stored: a build seldom writes anything."""


@dataclass(frozen=True, slots=True)
class RecordedBuild:
    """A payload with its epoch and build id; of a new epoch no caller has an earlier payload."""

    state: BuildState
    rendered: CachedPayload
    epoch: Epoch
    is_new_epoch: bool
    break_reason: str | None
    through_seq: int
    build_id: str


def unrecorded(deps: BuildDependencies, state: BuildState, choice: EpochChoice) -> RecordedBuild:
    """Return the build that `record` would return, without storing anything; it has no id."""
    rendered, items = state.rendered, state.items
    assert rendered is not None and items is not None
    epoch = choice.last_epoch if choice.break_reason is None else None
    through_seq = max(items.rendered_through, state.input.conversation.state.head_seq)
    return RecordedBuild(
        state,
        rendered,
        epoch or _new_epoch(deps, state, choice),
        epoch is None,
        choice.break_reason,
        through_seq,
        build_id="",
    )


async def record(deps: BuildDependencies, state: BuildState, choice: EpochChoice) -> RecordedBuild:
    """Write the epoch unless it is the last one. Raises Restart when another build was first."""
    build = unrecorded(deps, state, choice)
    epoch = build.epoch
    if build.is_new_epoch:
        async with deps.database.session() as session:
            is_added = await session.contexts.add_epoch(
                state.attempt.conversation_id, epoch, choice.start.view, _texts_by_hash(state)
            )
        if not is_added:
            raise state.restart()
    rendered = build.rendered
    rendered.epoch_id, rendered.start_json = epoch.epoch_id, epoch.start_json
    deps.cache.put(state.attempt.cache_key, rendered)
    tail_hash = await _record_tail(deps, state, rendered)
    await _record_usage(deps, state, 0 if build.is_new_epoch else MIN_UNSTORED_CHANGE)
    return replace(build, build_id=str(BuildId(epoch.epoch_id, build.through_seq, tail_hash)))


def _new_epoch(deps: BuildDependencies, state: BuildState, choice: EpochChoice) -> Epoch:
    resolved, settings = state.resolved, state.attempt.settings
    conversation_state = state.input.conversation.state
    return Epoch(
        epoch=choice.last_epoch.epoch + 1 if choice.last_epoch is not None else 1,
        epoch_id=deps.new_id(),
        payload_stream=payload_stream_of(settings, resolved.model or ""),
        format=settings.format,
        window=requested_window(settings),
        reason=choice.break_reason,
        start_seq=conversation_state.head_seq,
        view_version=conversation_state.view_version,
        start_json=choice.start.as_json(),
        sections_hash=resolved.sections_hash,
        tools_hash=resolved.tools_hash,
        policy_hash=resolved.policy_hash,
    )


def _texts_by_hash(state: BuildState) -> Mapping[str, str]:
    """Return the texts that an epoch refers to, by hash."""
    texts = dict(state.resolved.texts)
    if state.texts_before_history:
        texts[state.dynamic_hash] = json_text.dumps(state.texts_before_history)
    return texts


async def _record_usage(deps: BuildDependencies, state: BuildState, min_change: int) -> None:
    """Store what the payload has beyond the state's sums, where that has changed by so much.

    Inside an epoch a hundredth of the window is not much. Other payloads than those of the stored
    settings do not count.
    """
    conversation, settings = state.input.conversation, state.attempt.settings
    stored = conversation.model or deps.resolver.default_model
    slides = state.resolved.policy.strategy is StrategyName.SLIDING_WINDOW
    if requested_window(settings) or state.resolved.model != stored or slides:
        return
    resolved = await deps.resolver.of(conversation)
    sums = stored_usage_of(resolved, conversation, conversation.state.shown_tokens)
    unstored = state.usage.total - sums.total
    if min_change:
        min_change = max(min_change, state.limits.effective_window // 100)
    if abs(unstored - conversation.state.unstored_tokens) <= min_change:
        return
    async with deps.database.session() as session:
        await session.contexts.set_unstored_tokens(
            conversation.conversation_id, conversation.state.view_version, unstored
        )


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
