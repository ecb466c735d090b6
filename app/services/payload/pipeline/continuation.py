"""Continues the last build of a payload stream where only messages were added since.

The steps of a build choose settings, view, tools and epoch. A message changes none of them unless
the payload becomes too long, mentions another tool or uses a deferred one: then, and where
anything but the log has changed, the steps run.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.common.policy import StrategyName
from app.domain.payload.epochs import epoch_start_from
from app.services.payload.pipeline.compaction import is_small_enough
from app.services.payload.pipeline.epoch import EpochChoice
from app.services.payload.pipeline.loading import ReadConversation, with_status
from app.services.payload.pipeline.rendering import extend, with_notes
from app.services.payload.pipeline.state import Attempt, BuildDependencies, BuildState


async def continued(
    deps: BuildDependencies, attempt: Attempt, found: ReadConversation
) -> tuple[BuildState, EpochChoice] | None:
    """Return the last build with the new messages, and its epoch; None where the steps have to run.

    The cached payload has the new messages in any case.
    """
    last, cached, build_input = found.last, found.cached, found.input
    epoch = build_input.epoch
    if last is None or cached is None or epoch is None or epoch.epoch_id != found.cached_epoch_id:
        return None
    conversation = build_input.conversation
    attempt = await with_status(deps, attempt, last.resolved, conversation)
    if attempt.settings != last.attempt.settings:
        return None
    promoted = conversation.state.promoted_now
    if promoted and not set(promoted).isdisjoint(last.tools.deferred):
        return None
    state, texts = last, last.resolved.dynamic(attempt.settings)
    if texts != last.dynamic_texts:
        state = last.with_dynamic_texts(texts)
        if state.opening != last.opening:
            return None
    extend(cached, build_input.rows)
    start = epoch_start_from(epoch.start_json)
    choice = EpochChoice(epoch, start, None, start.tools.agent_tools)
    state = replace(
        state,
        attempt=attempt,
        input=build_input,
        rendered=cached,
        entries=cached.entries,
        items=cached.assembler.items(state.tail),
    )
    state = with_notes(state, choice.kept_tools)
    return (state, choice) if choice.matches(state) and is_small_enough(state) else None


def continuable(state: BuildState) -> BuildState | None:
    """Return a build for `continued` to start from, without its messages.

    None where the next build may differ in more than its messages: the window of a sliding window
    moves, and what was left out for one build may come back.
    """
    is_special = state.drops_reasoning or state.degraded != state.lasting_degraded
    if is_special or state.resolved.policy.strategy is StrategyName.SLIDING_WINDOW:
        return None
    return state.without_messages()
