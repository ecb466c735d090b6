"""Views made from views: by a compaction, for a model, with notes; and what they cost.

1. A compaction replaces the view by one that hides or clears more. The log never changes.
2. What was hidden without a summary is included in the next summary that is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from app.blobs.preview import COMPACT_CONTEXT, GREP, READ_BYTES, READ_LINES, RECALL
from app.conversations.conversation import BreakReason, ConversationState
from app.conversations.receipt import CompactionPlan, ViewState
from app.conversations.turns import Entry, entry
from app.conversations.view import (
    SUMMARY_PREFIX,
    ProviderItem,
    ShortenedMessage,
    Span,
    Summary,
    View,
    count_in,
    hidden_by,
    minus,
    overlap,
    spans_beside,
    spans_of,
    union,
)
from app.formats import PROVIDERS
from app.formats.message import FormatName, Reasoning, Role
from app.formats.reasoning import encrypted_bytes, is_requested, readable_summary
from app.models.tokens import MESSAGE_OVERHEAD, CountText
from app.policy.policy import Policy
from app.prompt.resolved_settings import ResolvedSettings

ENCRYPTED_BYTES_PER_TOKEN = 4
NO_PROVIDER_COMPACTION = "provider_compaction_unavailable"
"""`degraded`: the strategy is `provider`, but the provider of the format has no compaction."""


def base_view(state: ConversationState, active: View | None, policy: Policy) -> View:
    """Return the view of a conversation when nothing has to be reduced.

    That is the view of the active compaction, adjusted to an active window that has moved since:
    messages that entered the window are shown, summaries that are wholly outside it are not.
    """
    window = state.window.spans
    if active is None:
        return View(spans=window, window=window)
    hidden_spans = minus(active.window, active.spans)
    kept_spans = overlap(spans_of(state.protected_seqs), window)
    view = replace(
        active,
        spans=union((*minus(window, hidden_spans), *kept_spans)),
        uncleared_results=tuple(
            seq for seq in state.protected_seqs if seq <= active.results_cleared_through
        ),
        summary_as_system=policy.summary_role == "system",
        window=window,
    )
    view = view.with_repeated(active.repeated_results, state.protected_seqs)
    if window == active.window:
        return view
    view = with_shown_item(view, stands_for_messages=active.hidden is not None)
    # Summaries of messages that left the window are dropped; without any, so is `retain`.
    summaries = tuple(item for item in view.summaries if overlap((item.span,), window))
    retain = view.retain if summaries or not view.summaries else None
    return with_omission_note(replace(view, summaries=summaries, retain=retain))


def with_view(
    state: ConversationState, view_state: ViewState, cause: BreakReason | None
) -> ConversationState:
    """Return the state with a view, which is a new version if there is a cause."""
    view, has_view = view_state.view, view_state.compaction_id is not None
    return replace(
        state,
        view_version=state.view_version + (cause is not None),
        view_cause=cause or state.view_cause,
        compaction_id=view_state.compaction_id,
        hidden_span=view.hidden if has_view else None,
        protected_seqs=view_state.protected_seqs,
        results_cleared_through=view.results_cleared_through if has_view else 0,
        summary_tokens=view_state.summary_tokens,
        hidden_tokens=view_state.hidden_tokens,
        hidden_messages=view_state.hidden_messages,
    )


def without_compaction(state: ConversationState) -> ConversationState:
    """Return the state of a conversation whose compaction is no longer shown."""
    whole = ViewState(View(), None, 0, state.outside_tokens, state.outside_messages)
    return replace(with_view(state, whole, "policy_changed"), resume_at_tokens=0, failures=0)


def view_after(
    view: View,
    plan: CompactionPlan,
    summaries: Sequence[Summary],
    retain: str | None,
    never_cleared: Iterable[int],
) -> View:
    """Return the view after a plan is applied to `view`, with these summaries.

    Shown messages in `never_cleared` keep their results: pins and results of excluded tools.
    """
    through = max(view.results_cleared_through, plan.results_cleared_through)
    hidden = plan.hidden or view.hidden
    kept_seqs = plan.kept_seqs if plan.hidden is not None else view.kept_seqs
    spans = spans_beside(hidden, kept_seqs, view.window)
    after = replace(
        view,
        spans=spans,
        summaries=_inside(summaries, hidden_by(spans, view.window)),
        retain=retain,
        results_cleared_through=through,
    )
    uncleared = {seq for seq in {*kept_seqs, *never_cleared} if seq <= through and after.shows(seq)}
    after = with_shortened(replace(after, uncleared_results=tuple(sorted(uncleared))), ())
    repeated = {*view.repeated_results, *plan.repeated_results}
    after = with_shown_item(after.with_repeated(repeated, {*kept_seqs, *never_cleared}))
    if plan.hidden is None:
        return after
    return with_omission_note(after, unsummarised=0 if plan.summarises else len(plan.released_seqs))


def with_shown_item(view: View, *, stands_for_messages: bool = False) -> View:
    """Return the view without a provider's item whose message it does not show.

    With `stands_for_messages` the item also goes where no message that it stands for is in the
    active window.
    """
    item = view.provider_item
    if item is None:
        return view
    is_idle = stands_for_messages and not overlap((Span(1, item.seq),), view.window)
    return view if view.shows(item.seq) and not is_idle else replace(view, provider_item=None)


def provider_item(
    part: Reasoning, seq: int, format: FormatName, model: str, count: CountText
) -> ProviderItem:
    """Return the item of the message at a seq, which a model made, with its estimated cost.

    That of an encrypted one is known to its provider only, when its usage is reported.
    [compaction.provider-item]
    """
    text = readable_summary(part)
    tokens = count(text) if text else encrypted_bytes(part) // ENCRYPTED_BYTES_PER_TOKEN
    return ProviderItem(seq, format, model, MESSAGE_OVERHEAD + tokens, is_requested(part))


def view_from_item(
    view: View, item: ProviderItem, pinned_seqs: Iterable[int], text: str, count: CountText
) -> View:
    """Return the view that begins with a provider's item.

    Pinned messages before it stay. `text` is its readable summary. Where that is empty, the
    summaries of `view` stay, until the first payload that cannot send the item needs one. No result
    that was cleared is shown any more.
    """
    spans = spans_beside(Span(1, item.seq), pinned_seqs, view.window)
    summaries = view.summaries
    if text:
        span = hidden_by(spans, view.window) or Span(item.seq, item.seq)
        tokens = summary_message_tokens(text, count)
        summaries = (Summary(span, text, tokens, sources=(span,)),)
    after = replace(
        view,
        spans=spans,
        summaries=summaries,
        results_cleared_through=0,
        uncleared_results=(),
        repeated_results=(),
        provider_item=item,
    )
    return with_omission_note(with_shortened(after, ()))


def view_for_model(view: View, model: str, format: FormatName) -> View:
    """Return the view as payloads of a model show it: without an item that it cannot read.

    [compaction.provider-family]
    """
    item = view.provider_item
    if item is None or (
        item.format is format and PROVIDERS[format].is_same_family(item.model, model)
    ):
        return view
    return with_omission_note(replace(view, provider_item=replace(item, is_sent=False)))


def without_item(view: View) -> View:
    """Return the view without its provider's item, for a payload that has no room for it."""
    return with_omission_note(replace(view, provider_item=None))


def with_item_sent(view: View) -> View:
    """Return the view as the conversation has it: with its item, even if a payload left it out."""
    item = view.provider_item
    return view if item is None else replace(view, provider_item=replace(item, is_sent=True))


def lacks_summary(view: View) -> bool:
    """Whether nothing but a provider's item stands for hidden messages.

    A payload that does not send the item needs a summary of them.
    """
    item, hidden = view.provider_item, view.hidden
    if item is None or hidden is None or hidden.start >= item.seq:
        return False
    return view.summarised is None or view.summarised.end < item.seq


def _inside(summaries: Iterable[Summary], hidden: Span | None) -> tuple[Summary, ...]:
    """Return the summaries, cut to the hidden range: messages shown at its edges need none."""
    cut = ((each, overlap((each.span,), (hidden,) if hidden else ())) for each in summaries)
    return tuple(replace(each, span=spans[0]) for each, spans in cut if spans)


def with_omission_note(view: View, unsummarised: int = 0) -> View:
    """Return the view with a note that counts the hidden messages without a summary, if any.

    It also counts `unsummarised` messages in the range of a summary that was made while they were
    shown.
    """
    hidden = view.hidden
    if hidden is None:
        return replace(view, note=None)
    shown = view.kept_seqs
    inside = overlap((hidden,), view.window)
    covered = [summary.span for summary in view.summaries]
    if (item := view.sent_item) is not None:
        covered.append(Span(1, item.seq))
    summarised = overlap(union(covered), inside)
    count = unsummarised + count_in(inside) - len(shown)
    count -= count_in(summarised) - sum(span.holds(seq) for span in summarised for seq in shown)
    messages = "1 earlier message was" if count == 1 else f"{count} earlier messages were"
    note = f"[{messages} left out to fit the window.]"
    return replace(view, note=note if count > 0 else None)


def covers_only(view: View, through_seq: int) -> bool:
    """Whether a view covers no message after a seq, and shows one up to it."""
    hidden = view.hidden
    if view.provider_item is not None and view.provider_item.seq > through_seq:
        return False
    if any(item.newer_seq > through_seq for item in view.repeated_results):
        return False
    shows = any(span.start <= through_seq for span in view.spans)
    return view.results_cleared_through <= through_seq and (
        hidden is None or (hidden.end <= through_seq + 1 and shows)
    )


def protected_in(view: View) -> tuple[int, ...]:
    """Return the seqs that a view neither hides nor clears although they lie in such a range."""
    return tuple(sorted({*view.kept_seqs, *filter(view.shows, view.uncleared_results)}))


def protected_with(
    view: View, seqs: Iterable[int], pinned: Iterable[Entry]
) -> tuple[tuple[int, ...], int, int]:
    """Return protected seqs with pinned messages, and the tokens and messages that these add.

    `view` is that of the active compaction, `seqs` are the conversation's `protected_seqs` before.
    """
    hidden, protected = view.hidden, set(seqs)
    tokens = messages = 0
    for item in pinned:
        if item.seq in protected or not overlap((Span(item.seq, item.seq + 1),), view.window):
            continue
        if hidden is not None and hidden.holds(item.seq):
            tokens, messages = tokens + item.tokens, messages + 1
        elif view.clears_result(item.seq) and item.role is Role.TOOL:
            tokens += item.tokens - entry(item.seq, item.role, item.tokens).placeholder_tokens
        else:
            continue
        protected.add(item.seq)
    return tuple(sorted(protected)), tokens, messages


def shown_entries(entries: Iterable[Entry], view: View) -> list[Entry]:
    """Return the entries a view shows, each at what it costs there.

    A kept message in the hidden range counts as not clearable: later it is hidden instead.
    """
    hidden = view.hidden
    return [
        _at_cost(item, view, hidden)
        for item in shortened_entries(entries, view)
        if view.shows(item.seq)
    ]


def shortened_entries(entries: Iterable[Entry], view: View) -> Iterable[Entry]:
    """Return the entries, those that a view shortens at their lower cost."""
    if not view.shortened:
        return entries
    costs = {short.seq: short.tokens for short in view.shortened}
    return [
        replace(item, tokens=costs[item.seq], placeholder_tokens=costs[item.seq])
        if item.seq in costs
        else item
        for item in entries
    ]


def with_shortened(view: View, shortened: Iterable[ShortenedMessage]) -> View:
    """Return the view with more messages shortened, or shorter, without those not shown."""
    by_seq = {item.seq: item for item in (*view.shortened, *shortened) if view.shows(item.seq)}
    return replace(view, shortened=tuple(by_seq[seq] for seq in sorted(by_seq)))


def _at_cost(item: Entry, view: View, hidden: Span | None) -> Entry:
    if item.tokens == item.placeholder_tokens:
        return item
    tokens, placeholder_tokens = item.tokens, item.placeholder_tokens
    if view.clears_result(item.seq):
        tokens = placeholder_tokens
    elif hidden is not None and hidden.holds(item.seq):
        placeholder_tokens = tokens
    else:
        return item
    return replace(item, tokens=tokens, placeholder_tokens=placeholder_tokens)


def summary_message_tokens(summary: str, count: CountText) -> int:
    """Return the tokens of the message that carries a summary's text."""
    return _message_tokens(f"{SUMMARY_PREFIX}{summary}]", count)


@lru_cache(8)  # a plan and its receipt compare the same views several times
def _message_tokens(text: str, count: CountText) -> int:
    return MESSAGE_OVERHEAD + count(text)


def view_summary_tokens(view: View, count: CountText) -> int:
    """Return the tokens of what stands for the messages that a view hides, 0 without any."""
    item_tokens = view.sent_item.tokens if view.sent_item is not None else 0
    return item_tokens + sum(_message_tokens(text, count) for text in view.summary_texts())


def agent_tools_tokens(
    resolved: ResolvedSettings,
    state: ConversationState,
    *,
    has_placeholders: bool | None = None,
    has_shortened: bool = False,
    hides_messages: bool | None = None,
) -> int:
    """Return the maximum tokens of the agent tools in a payload, before the model's factor.

    That is the case if all cut results are shown. `has_placeholders` is set when the view clears
    results, `hides_messages` when it has a summary or a note instead of messages; by default they
    are those of the state. `has_shortened` is set when it shortens messages.
    """
    if has_placeholders is None:
        has_placeholders = state.results_cleared_through > 0
    if hides_messages is None:
        hides_messages = state.hidden_span is not None
    lasting = lasting_agent_tools(
        resolved.policy, has_placeholders=has_placeholders, hides_messages=hides_messages
    )
    readers = (READ_LINES, GREP, READ_BYTES) if has_shortened else ()
    tools = resolved.agent_tools((*state.named_tools, *lasting, *readers))
    return resolved.agent_tool_tokens(tools)


def lasting_agent_tools(
    policy: Policy, *, has_placeholders: bool, hides_messages: bool
) -> tuple[str, ...]:
    """Return the agent tools of a view that hides messages or clears results. [agent-tools.stay]

    Tools come first in a payload: one that goes and comes back breaks the whole prefix each time.
    So they stay while no text mentions them: the reader of placeholders, `recall` for what is
    compacted [summary.recall-offered], and the tool of the usage note where compactions are
    automatic.
    """
    reader = (READ_LINES,) if has_placeholders else ()
    recall = (RECALL,) if hides_messages else ()
    tools = (*reader, *recall)
    return (*tools, COMPACT_CONTEXT) if tools and policy.compaction.auto else tools
