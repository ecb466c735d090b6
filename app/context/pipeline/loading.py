"""Loads what a build starts from: the state of the conversation and its resolved settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.common.errors import NotFound, ValidationError
from app.context.payload_cache import CachedPayload
from app.context.pipeline.overflow import context_overflow
from app.context.pipeline.state import Attempt, BuildDependencies, Restart
from app.conversations.compaction_receipt import is_shown_with
from app.conversations.contributors import contributors
from app.conversations.conversation import Conversation
from app.conversations.epoch import BuildInput, Epoch
from app.conversations.epochs import epoch_factor, epoch_start_from, requested_window
from app.models.budget import Limits
from app.prompt.resolved_settings import PayloadTools, ResolvedSettings, check_tools


@dataclass(frozen=True, slots=True)
class LoadedConversation:
    """A conversation and its resolved settings, as one build sees them.

    `last_epoch` is the newest of this stream and context window. `cached_epoch_id` was read with
    `cached`, which other builds may change meanwhile.
    """

    attempt: Attempt
    input: BuildInput
    resolved: ResolvedSettings
    limits: Limits
    last_epoch: Epoch | None
    cached: CachedPayload | None
    cached_epoch_id: str


async def load(deps: BuildDependencies, attempt: Attempt) -> LoadedConversation:
    """Read the conversation and resolve its settings; its active window is moved if it has to.

    Raises NotFound, ValidationError (no messages, no model, too many tools), ContextLimitUnknown,
    ContextOverflow where the prompt alone is too long, and Restart.
    """
    cached, cached_epoch_id, build_input = await _read(deps, attempt)
    if build_input.conversation.is_outdated(deps.active.now()):
        await deps.active.updated(attempt.tenant_id, build_input.conversation)
        cached, cached_epoch_id, build_input = await _read(deps, attempt)
    conversation = build_input.conversation
    if not conversation.state.shown_messages:
        where = " in its active window" if conversation.state.head_seq else ""
        raise ValidationError(f"Conversation has no messages{where}")
    settings = attempt.settings
    last_epoch, factor = build_input.window_epoch or build_input.epoch, None
    if last_epoch is not None and last_epoch.window != requested_window(settings):
        last_epoch = None
    if last_epoch is not None:
        # The epoch's factor stays while it is close to the model's.
        start = epoch_start_from(last_epoch.start_json)
        factor = epoch_factor(start, deps.resolver.calibration_of(conversation, settings).factor)
    resolved = await deps.resolver.of(conversation, settings, factor)
    if resolved.model is None:
        raise ValidationError.at(
            "/model", "No model: name one in the request, the conversation or its agent"
        )
    attempt = await _with_status(deps, attempt, resolved, conversation)
    limits = resolved.required_limits()
    check_tools(resolved, settings.format)
    _check_prompt(resolved, limits, attempt)
    if not attempt.is_preview and not is_shown_with(
        build_input.compaction_strategy, resolved.policy.strategy
    ):
        # Another strategy made the active summary.
        async with deps.database.session() as session:
            await session.contexts.hide_compaction(
                conversation.conversation_id, conversation.state.view_version
            )
        raise Restart(attempt)
    return LoadedConversation(
        attempt, build_input, resolved, limits, last_epoch, cached, cached_epoch_id
    )


async def _with_status(
    deps: BuildDependencies,
    attempt: Attempt,
    resolved: ResolvedSettings,
    conversation: Conversation,
) -> Attempt:
    """Return the attempt with the status of the agent's other conversations, where it has one."""
    if not resolved.derives_status(attempt.settings):
        return attempt
    status = await deps.statuses.of(attempt.tenant_id, conversation)
    if status is None:
        return attempt
    return replace(attempt, settings=replace(attempt.settings, status=status))


async def _read(
    deps: BuildDependencies, attempt: Attempt
) -> tuple[CachedPayload | None, str, BuildInput]:
    """Read the conversation with the rows that the cached payload lacks.

    The build has to use this cached payload and this epoch, because the rows that they cover are
    not read, whatever other builds do to the cache meanwhile.
    """
    cached = deps.cache.find(attempt.cache_key)
    cached_epoch_id = cached.epoch_id if cached else ""
    async with deps.database.session() as session:
        build_input = await session.contexts.read_build_input(
            attempt.tenant_id,
            attempt.conversation_id,
            attempt.settings,
            deps.resolver.default_model,
            cached_epoch_id=cached.epoch_id if cached else None,
            cached_start=cached.start_json if cached else None,
            cached_through=cached.assembler.rendered_through if cached else 0,
        )
    if build_input is None:
        deps.cache.drop(attempt.cache_key)
        raise NotFound.conversation(attempt.conversation_id)
    return cached, cached_epoch_id, build_input


def _check_prompt(resolved: ResolvedSettings, limits: Limits, attempt: Attempt) -> None:
    usage = resolved.usage(0, 0, added_system_tokens=-resolved.raw_dynamic)
    if usage.total >= limits.capacity:
        tools = PayloadTools((), resolved.deferral(attempt.settings.format))
        largest = contributors(resolved, tools, usage, ())
        raise context_overflow(resolved, limits, usage, largest, {})
