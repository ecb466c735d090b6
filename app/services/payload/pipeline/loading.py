"""Loads what a build starts from: the state of the conversation and its resolved settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.domain.common.errors import NotFound, ValidationError
from app.domain.common.messages import FormatName
from app.domain.conversations.compaction_receipt import is_shown_with
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.epoch import BuildInput, Epoch
from app.domain.models.budget import Limits
from app.domain.payload.contributors import contributors
from app.domain.payload.epochs import epoch_factor, epoch_start_from, requested_window
from app.domain.prompt.resolved_settings import PayloadTools, ResolvedSettings, check_tools
from app.services.payload.payload_cache import CachedPayload
from app.services.payload.pipeline.overflow import context_overflow
from app.services.payload.pipeline.state import Attempt, BuildDependencies, BuildState, Restart


@dataclass(frozen=True, slots=True)
class ReadConversation:
    """A conversation with the rows that the cached payload lacks.

    `cached_epoch_id` was read with `cached`, which other builds may change meanwhile. `last` is the
    last build of the cached payload where only messages were added since, else None. `shown` is a
    rendered history of all messages, of the build alone, None where they have to be rendered.
    """

    input: BuildInput
    cached: CachedPayload | None = None
    cached_epoch_id: str = ""
    last: BuildState | None = None
    shown: CachedPayload | None = None


@dataclass(frozen=True, slots=True)
class LoadedConversation:
    """A conversation and its resolved settings, as one build sees them.

    `last_epoch` is the newest of this stream and context window. `cached_epoch_id` and `shown` are
    as in `ReadConversation`.
    """

    attempt: Attempt
    input: BuildInput
    resolved: ResolvedSettings
    limits: Limits
    last_epoch: Epoch | None
    cached: CachedPayload | None
    cached_epoch_id: str
    shown: CachedPayload | None


async def read(deps: BuildDependencies, attempt: Attempt) -> ReadConversation:
    """Read the conversation, whose active window is moved first if it has to. Raises NotFound."""
    found = await _read(deps, attempt)
    if found.input.conversation.is_outdated(deps.active.now()):
        await deps.active.updated(attempt.tenant_id, found.input.conversation)
        found = await _read(deps, attempt)
    return found


async def load(
    deps: BuildDependencies, attempt: Attempt, found: ReadConversation
) -> LoadedConversation:
    """Resolve the settings of a conversation.

    Raises ValidationError (no messages, no model, too many tools), ContextLimitUnknown,
    ContextOverflow where the prompt alone is too long, and Restart.
    """
    build_input = found.input
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
        calibration = conversation.calibration
        factor = epoch_factor(start, calibration.rounded.factor if calibration is not None else 1.0)
    resolved = await deps.resolver.of(conversation, settings, factor)
    if resolved.model is None:
        raise ValidationError.at(
            "/model", "No model: name one in the request, the conversation or its agent"
        )
    attempt = await with_status(deps, attempt, resolved, conversation)
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
        attempt,
        build_input,
        resolved,
        limits,
        last_epoch,
        found.cached,
        found.cached_epoch_id,
        found.shown,
    )


async def with_status(
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


async def _read(deps: BuildDependencies, attempt: Attempt) -> ReadConversation:
    """Read the conversation with the rows that the cached payload lacks.

    The build has to use this cached payload and this epoch, because the rows that they cover are
    not read, whatever other builds do to the cache meanwhile.
    """
    cached = deps.cache.find(attempt.cache_key)
    cached_epoch_id = cached.epoch_id if cached else ""
    if cached is not None and attempt.is_first:
        last = cached.last
        known_input = await _known_input(deps, attempt, cached)
        if known_input is not None:
            return ReadConversation(known_input, cached, cached_epoch_id, last)
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
    return ReadConversation(build_input, cached, cached_epoch_id)


async def _known_input(
    deps: BuildDependencies, attempt: Attempt, cached: CachedPayload
) -> BuildInput | None:
    """Return what the newest build read, with what was appended since, if nothing else changed.

    Nothing is read where this request has appended all that is new; else the versions, and the rows
    that are new.
    """
    build_input, through = cached.input, cached.assembler.rendered_through
    if build_input is None:
        return None
    known, appended = build_input.conversation, attempt.appended
    newest = deps.database.cached_conversation(attempt.tenant_id, attempt.conversation_id)
    if newest is not None and newest.state.version > known.state.version:
        return None  # versions only grow
    if known.expires_at is not None and known.expires_at <= deps.active.now():
        return None
    as_chat = attempt.settings.format is FormatName.OPENAI_CHAT
    if appended is not None and appended.first_seq == through + 1:
        current = appended.conversation
        if (current.state.version, current.settings_version) == (
            known.state.version,
            known.settings_version,
        ):
            if attempt.settings.model is None:
                conversation = current
            else:  # its settings are those of another model
                conversation = replace(known, state=current.state)
            return replace(
                build_input, conversation=conversation, rows=appended.rows(as_chat=as_chat)
            )
    async with deps.database.session() as session:
        since = await session.contexts.read_since(
            attempt.tenant_id,
            known,
            attempt.settings.model or known.model or deps.resolver.default_model,
            through,
            as_chat=as_chat,
        )
    if since is None:
        return None
    conversation, rows = since
    return replace(build_input, conversation=conversation, rows=rows)


def _check_prompt(resolved: ResolvedSettings, limits: Limits, attempt: Attempt) -> None:
    usage = resolved.usage(0, 0, added_system_tokens=-resolved.raw_dynamic)
    if usage.total >= limits.capacity:
        tools = PayloadTools((), resolved.deferral(attempt.settings.format))
        largest = contributors(resolved, tools, usage, ())
        raise context_overflow(resolved, limits, usage, largest, {})
