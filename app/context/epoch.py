"""Decides whether a payload continues the last epoch of its stream, and records a new one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.common import json_text
from app.context.history import needed_agent_tools
from app.context.payload_cache import CachedPayload
from app.context.state import REASONING_DROPPED, BuildDependencies, BuildState, Changed
from app.conversations.budget_status import stored_usage_of
from app.conversations.epochs import (
    PROVIDER_COMPACTED,
    BuildId,
    Epoch,
    EpochStart,
    break_reason,
    epoch_start_from,
    is_same_prefix,
    model_in,
    payload_stream_of,
    requested_window,
)
from app.formats import PROVIDERS
from app.formats.reasoning import GEMINI, binds_reasoning
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import digest


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

    A build that left the prefix of the last epoch does not return to it, and keeps the tools that
    it chose. Otherwise it could alternate for ever: without its reasoning a payload may be below
    `notice_at`, so that it has no usage note; then the prefix of the last epoch fits again, with
    the reasoning.
    """
    last_epoch = state.input.epoch
    has_left = previous is not None and previous.leaves_prefix
    tools = previous.start.tools.agent_tools if previous is not None and has_left else ()
    own_start = _new_start(state, tools)
    if last_epoch is None:
        reason = "model_changed" if state.input.other_streams else None
        is_seen = (state.view.is_whole or _begins_with_item(state)) and not _has_foreign(state)
        reasoning_after = 0 if is_seen else _reasoning_after(state)
    else:
        last_start = epoch_start_from(last_epoch.start_json)
        last_view, kept_tools = last_start.view, tools or last_start.tools.agent_tools
        new_start = _new_start(state, kept_tools)
        reason = break_reason(
            last_epoch,
            last_start,
            new_start,
            state.resolved,
            state.stored,
            requested_window(state.attempt.settings),
            state.input.pins,
        )
        reasoning_after = last_view.reasoning_after
        if not has_left and state.reasoning_floor <= reasoning_after:
            if reason is None:
                return EpochChoice(last_epoch, last_start, None, kept_tools)
            start = _with_reasoning_limit(new_start, reasoning_after, last_view.reasoning_of)
            start = replace(start, view=replace(start.view, late_through=last_view.late_through))
            if is_same_prefix(reason, last_start, start):
                return EpochChoice(last_epoch, start, reason, kept_tools)
        reason = reason or REASONING_DROPPED
        item = state.view.sent_item
        is_only_change = reason == PROVIDER_COMPACTED and own_start.tools == last_start.tools
        if item is not None and is_only_change and _begins_with_item(state):
            # The model made what follows its item with the item as its only history.
            reasoning_after = max(reasoning_after, item.seq - 1)
        else:
            reasoning_after = max(reasoning_after, _reasoning_after(state))
    start = _with_reasoning_limit(
        own_start,
        max(reasoning_after, state.reasoning_floor),
        state.resolved.accepted_reasoning(state.format),
    )
    return EpochChoice(last_epoch, start, reason, tools, leaves_prefix=last_epoch is not None)


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
    if item is None or item.model != state.resolved.model or state.reasoning_floor:
        return False
    is_alone = not (state.opening.texts or view.unhidden_seqs or view.summary_texts())
    return is_alone and not view.is_reduced_inside


def _reasoning_after(state: BuildState) -> int:
    """Return after which seq reasoning is replayed where the prefix differs from before.

    Most providers take all of it. Where it is bound to the prefix, or may be of a model whose
    reasoning this one refuses, that of the messages so far is left out.
    """
    is_refused = binds_reasoning(state.resolved.model or "") or _has_foreign(state)
    return state.stored.head_seq if is_refused else 0


def _has_foreign(state: BuildState) -> bool:
    """Whether the messages of a new stream may have reasoning that its model refuses.

    In the Chat format its fields name the family. Gemini and models that bind their reasoning
    refuse that of other models of their family too.
    """
    family = state.resolved.accepted_reasoning(state.format)[:1]
    provider = PROVIDERS[state.format]
    others = {provider.accepted_families(model_in(it))[:1] for it in state.input.other_streams}
    if provider.names_family:
        others &= {family}
    is_strict = family == (GEMINI,) or binds_reasoning(state.resolved.model or "")
    return bool(others if is_strict else others - {family})


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


async def record(
    deps: BuildDependencies, state: BuildState, choice: EpochChoice
) -> RecordedBuild | Changed:
    """Write the epoch unless it is the last one; another build may have been first.

    Of a preview nothing is stored, and it has no id.
    """
    rendered, items, attempt = state.rendered, state.items, state.attempt
    assert rendered is not None and items is not None
    last_epoch = choice.last_epoch if choice.break_reason is None else None
    epoch = last_epoch or _new_epoch(deps, state, choice)
    through_seq = max(items.rendered_through, state.stored.head_seq)
    build = RecordedBuild(
        state, rendered, epoch, last_epoch is None, choice.break_reason, through_seq, build_id=""
    )
    if attempt.is_preview:
        return build
    if build.is_new_epoch:
        texts = dict(state.resolved.texts)
        if state.texts_before_history:
            texts[state.dynamic_hash] = json_text.dumps(state.texts_before_history)
        async with deps.database.session() as session:
            is_added = await session.contexts.add_epoch(attempt.conversation_id, epoch, texts)
        if not is_added:
            return state.changed()
    rendered.epoch_id, rendered.start_json = epoch.epoch_id, epoch.start_json
    deps.cache.put(attempt.cache_key, rendered)
    tail_hash = await _record_tail(deps, state, rendered)
    await _record_usage(deps, state, 0 if build.is_new_epoch else MIN_UNSTORED_CHANGE)
    return replace(build, build_id=str(BuildId(epoch.epoch_id, through_seq, tail_hash)))


def _new_epoch(deps: BuildDependencies, state: BuildState, choice: EpochChoice) -> Epoch:
    resolved, settings = state.resolved, state.attempt.settings
    conversation_state = state.stored
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
