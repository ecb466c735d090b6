"""Decides whether a payload continues the last epoch of its stream, and why it does not.

Changed sections and tools end an epoch, unless its provider has items for the change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from app.compaction.rewind import REWOUND
from app.context.choose_view import is_current, needed_agent_tools
from app.context.repository import BuildInput
from app.context.state import DEGRADED_ONE_BUILD, REASONING_DROPPED, BuildDependencies, BuildState
from app.conversations.conversation import BreakReason
from app.conversations.epoch import (
    PROVIDER_COMPACTED,
    Epoch,
    EpochStart,
    PromptChange,
    changes_json,
    model_in,
    requested_context_window,
)
from app.conversations.from_rows import changes_from, current_hashes, epoch_start_from
from app.conversations.partial_messages import MEDIA_LEFT_OUT, MESSAGES_SHORTENED
from app.conversations.settings_resolver import RecordedPrompt, prompt_from
from app.conversations.view import View, minus, overlap
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.formats.reasoning import GEMINI, binds_reasoning
from app.formats.tools import ToolChange, Tools, tool_change
from app.models.tokens import MESSAGE_OVERHEAD, estimate_tool_defs_tokens
from app.prompt.agent_tools import AGENT_TOOLS
from app.prompt.resolved_settings import ResolvedSettings
from app.prompt.sections import changed_text, static_sections

MAX_CHANGES: Final = 20
"""Changes of sections and tools inside an epoch."""
MAX_SHARE: Final = 0.1
"""The share of the effective window that their items may have."""


@dataclass(frozen=True, slots=True)
class EpochChoice:
    """The epoch of a payload. `break_reason` says why it is not the last one, None where it is.

    `kept_tools` are the agent tools that stay: those of the last epoch, with `leaves_prefix` those
    that the build chose before. Then the payload does not begin as those of the last epoch do.
    """

    start: EpochStart
    break_reason: BreakReason | None
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
    if (last_epoch := state.input.epoch) is None:
        return _first_epoch(state)
    has_left = previous is not None and previous.leaves_prefix
    tools = previous.start.tools.agent_tools if previous is not None and has_left else ()
    last_start = epoch_start_from(last_epoch.start_json)
    kept_tools = tools or last_start.tools.agent_tools
    new_start = _new_start(state, kept_tools)
    reason = break_reason(state, last_epoch, last_start, new_start)
    reason = reason and (state.attempt.break_reason or reason)
    if not has_left and state.min_reasoning_after <= last_start.view.reasoning_after:
        if reason is None:
            return EpochChoice(last_start, None, kept_tools)
        if (start := _with_same_prefix(state, last_start, new_start, reason)) is not None:
            return EpochChoice(start, reason, kept_tools)
    reason = reason or REASONING_DROPPED
    start = _with_other_prefix(state, last_start, _new_start(state, tools), reason)
    return EpochChoice(start, reason, tools, leaves_prefix=True)


def _first_epoch(state: BuildState) -> EpochChoice:
    """Return the first epoch of a payload stream."""
    is_seen = (state.view.is_whole or _begins_with_item(state)) and not _has_foreign(state)
    reason: BreakReason | None = "model_changed" if state.input.other_streams else None
    after = 0 if is_seen else _reasoning_after(state)
    return EpochChoice(_with_reasoning(state, _new_start(state, ()), after), reason, ())


def _with_same_prefix(
    state: BuildState, last_start: EpochStart, new_start: EpochStart, reason: BreakReason
) -> EpochStart | None:
    """Return the start of an epoch that begins with the bytes of the last one, None without any.

    Only the budget is another one, or later messages left.
    """
    if reason not in ("budget_changed", REWOUND) or _loses_changes(state):
        return None
    last_view, window = last_start.view, state.view.window
    start = _with_view(
        new_start,
        reasoning_after=last_view.reasoning_after,
        reasoning_of=last_view.reasoning_of,
        late_through=last_view.late_through,
    )
    if reason == REWOUND:
        last_view = replace(last_view, window=window, spans=overlap(last_view.spans, window))
    is_same = (start.view, start.tools) == (last_view, last_start.tools)
    return start if is_same else None


def _with_other_prefix(
    state: BuildState, last_start: EpochStart, start: EpochStart, reason: BreakReason
) -> EpochStart:
    """Return the start of an epoch without the reasoning that its other prefix invalidates."""
    after, item = _reasoning_after(state), state.view.sent_item
    is_only_change = reason == PROVIDER_COMPACTED and start.tools == last_start.tools
    is_only_change = is_only_change and not _has_changes(state)
    if item is not None and is_only_change and _begins_with_item(state):
        # The model made what follows its item with the item as its only history.
        after = item.seq - 1
    return _with_reasoning(state, start, max(after, last_start.view.reasoning_after))


def _has_changes(state: BuildState) -> bool:
    """Whether the last epoch has changed sections or tools as items."""
    return state.input.epoch is not None and bool(changes_from(state.input.epoch.changes))


def _loses_changes(state: BuildState) -> bool:
    """Whether the last epoch has such items, and the payload has not."""
    return _has_changes(state) and state.continued_epoch is None


def _new_start(state: BuildState, kept_tools: tuple[str, ...]) -> EpochStart:
    agent_tools = needed_agent_tools(state, kept_tools) if state.items is not None else kept_tools
    return EpochStart(
        state.view,
        state.limits.context_window,
        state.limits.max_output_tokens,
        state.tools.with_agent_tools(agent_tools),
        tuple(value for value in state.degraded if value not in DEGRADED_ONE_BUILD),
        state.resolved.factor,
        state.dynamic_hash,
    )


def _with_view(start: EpochStart, **changes: int | tuple[str, ...]) -> EpochStart:
    view: View = replace(start.view, **changes)  # type: ignore[arg-type]
    return replace(start, view=view)


def _with_reasoning(state: BuildState, start: EpochStart, after: int) -> EpochStart:
    """Return the start with the reasoning after this seq, if a payload with it fits."""
    return _with_view(
        start,
        reasoning_after=max(after, state.min_reasoning_after),
        reasoning_of=state.resolved.accepted_reasoning(state.format),
    )


def _begins_with_item(state: BuildState) -> bool:
    """Whether the history is what the model saw when it made the messages after its item."""
    view, item = state.view, state.view.sent_item
    if item is None or item.model != state.resolved.model or state.min_reasoning_after:
        return False
    is_alone = not (state.leading.texts or view.kept_seqs or view.summary_texts())
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


# --- changed sections and tools -------------------------------------------------------------------


async def with_changes_as_items(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Go on with the sections and tools of the last epoch, if their changes can be items of it."""
    epoch, present = state.last_epoch, state.resolved
    if epoch is None or epoch is not state.input.epoch or state.attempt.must_begin_epoch:
        return state
    start, changes = epoch_start_from(epoch.start_json), changes_from(epoch.changes)
    last, key = current_hashes(epoch), state.conversation_id
    is_same = last == (present.sections_hash, present.tools_hash)
    if not is_current(state, start, state.stored.view_version) or (is_same and not changes):
        return state
    if not is_same:
        async with deps.database.session() as session:
            texts = await session.contexts.texts(key, last)
        old = prompt_from(texts[last[0]], texts[last[1]])
        change = planned_change(present, state.format, old, state.stored.head_seq)
        if change is None or start.tools.deferred:
            return state
        changes = (*changes, change)
        tokens = present.factor * sum(change.tokens for change in changes)
        if len(changes) > MAX_CHANGES or tokens > MAX_SHARE * state.limits.effective_window:
            return state
        epoch = replace(epoch, changes=changes_json(changes))
    async with deps.database.session() as session:
        resolved = await deps.resolver.with_prompt_of(session, key, present, epoch)
    return replace(state, resolved=resolved, continued_epoch=epoch)


def planned_change(
    resolved: ResolvedSettings, format: FormatName, old: RecordedPrompt, after: int
) -> PromptChange | None:
    """Return how old sections and tools become the resolved ones, after the message at a seq.

    None where the model has no items for it, or one could be misunderstood.
    """
    info, count, (sections, tools) = resolved.info, resolved.count, old
    others = tool_change(tools, resolved.tools)
    said = changed_text(sections, static_sections(resolved.sections))
    if said is None or info is None or not info.mid_conversation_system:
        return None
    if any(others) and not (info.tool_search and _are_functions(others, tools)):
        return None
    items = PROVIDERS[format].change(resolved.model or "", said, others)
    needs_betas = PROVIDERS[format].betas_of(items or ()) and not resolved.policy.sends_betas
    if items is None or needs_betas or resolved.deferral(format):
        return None
    tokens = estimate_tool_defs_tokens((*others.redefined, *others.added), count)
    tokens += MESSAGE_OVERHEAD * len(items) + sum(map(count, (said, *others.removed)))
    hashes = resolved.sections_hash, resolved.tools_hash
    return PromptChange(after, *hashes, tuple(items), tokens)


def _are_functions(change: ToolChange, tools: Tools) -> bool:
    """Whether only functions beside others change, none of which has an agent tool's name."""
    removed = (tool for tool in tools if tool.name in change.removed)
    changed = (*change.added, *change.redefined, *removed)
    is_plain = all(tool.hosted is None and tool.name not in AGENT_TOOLS for tool in changed)
    return is_plain and bool(tools)


# --- why a prefix breaks --------------------------------------------------------------------------


def break_reason(
    state: BuildState, last_epoch: Epoch, last_start: EpochStart, new_start: EpochStart
) -> BreakReason | None:
    """Return why a payload cannot extend those of the stream's last epoch, None when it can.

    `new_start` is that of an epoch that would begin now.
    """
    stored, resolved = state.stored, state.resolved
    if last_epoch.view_version < stored.redacted_version:
        return "redacted"
    last_sections, last_tools = current_hashes(last_epoch)
    if state.continued_epoch is not None:
        last_sections, last_tools = resolved.sections_hash, resolved.tools_hash
    if last_tools != resolved.tools_hash:
        return "tools_changed"
    sections = (last_sections, last_start.dynamic_hash)
    if sections != (resolved.sections_hash, new_start.dynamic_hash):
        return "sections_changed"
    requested = requested_context_window(state.attempt.settings)
    last_limits = (*last_start.limits, last_epoch.requested_context_window)
    if last_limits != (*new_start.limits, requested):
        return "budget_changed"
    if last_epoch.policy_hash != resolved.policy_hash:
        return "policy_changed"
    if last_epoch.view_version != stored.view_version:
        return stored.view_cause or "compaction"
    if reason := _view_change(last_start.view, new_start.view, state.input):
        return reason
    if last_start.tools != new_start.tools:
        return "tools_changed"
    if last_start.factor != new_start.factor:
        return "budget_changed"
    if not _loses_changes(state):
        return None
    return "sections_changed" if last_epoch.tools_hash == last_tools else "tools_changed"


def _view_change(old: View, new: View, input: BuildInput) -> BreakReason | None:
    """Return why the views differ: a pin may show a hidden message, its removal hide it again."""
    if old is new:
        return None
    has_same_spans = old.spans == new.spans
    cleared_apart = (old.uncleared_results, old.repeated_results)
    has_same_uncleared = cleared_apart == (new.uncleared_results, new.repeated_results)
    if not (has_same_spans and has_same_uncleared):
        if input.lacks_pin(old):
            return "pinned"
        only_hides = minus(old.spans, new.spans) and not minus(new.spans, old.spans)
        if only_hides and old.spans[-1] == new.spans[-1] and old.note == new.note:
            return "unpinned"
    if old.summary_texts() != new.summary_texts():
        return "compaction"
    if not has_same_spans:
        return "window_moved"
    if not has_same_uncleared or old.results_cleared_through != new.results_cleared_through:
        return "tool_results_cleared"
    if old.shortened != new.shortened:
        return MESSAGES_SHORTENED
    return MEDIA_LEFT_OUT if old.media_cut != new.media_cut else None
