"""The largest parts of a payload that is too long, and suggestions to make it fit.

1. Sections, tools, messages and the summary are listed with the tokens that the build counts. Of a
   payload that no reduction makes fit, the messages that cannot be dropped are listed.
2. A suggestion is made only where it can help. Its `action` is stable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.conversations.text_shortening import MIN_SHORTENED_TOKENS
from app.conversations.turns import Entry
from app.formats.message import Role
from app.models.budget import Limits, Usage, scaled
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import PayloadTools, ResolvedSettings

MAX_NAMED = 5
"""How many contributors an error lists."""
_MAX_NAME = 128
_LARGE_SHARE = 0.1
"""The share of the context window from which there is a suggestion for a contributor."""


@dataclass(frozen=True, slots=True)
class Contributor:
    """One part of a payload: `kind` is section, tool, summary or message."""

    kind: str
    tokens: int
    name: str = ""
    seq: int = 0
    role: Role | None = None
    pinned: bool = False

    def as_json(self, ids: Mapping[int, str]) -> dict[str, object]:
        """Return its fields in an error."""
        shown: dict[str, object] = {"kind": self.kind, "tokens": self.tokens}
        if self.role is not None:
            shown |= {"id": ids.get(self.seq), "seq": self.seq, "role": self.role}
            shown |= {"pinned": self.pinned}
        elif self.name:
            shown["name"] = self.name[:_MAX_NAME]
        return shown

    @property
    def phrase(self) -> str:
        """Its name in a sentence."""
        if self.role is not None:
            return f"the {self.role} message with seq {self.seq}"
        return f"the {self.kind} {self.name[:_MAX_NAME]!r}" if self.name else f"the {self.kind}"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that would help: a code and a sentence."""

    action: str
    detail: str


def contributors(
    resolved: ResolvedSettings, tools: PayloadTools, usage: Usage, entries: Iterable[Entry]
) -> list[Contributor]:
    """Return the largest parts of a payload that shows these entries, the largest first."""
    factor, deferred = resolved.factor, set(tools.deferred)
    parts = [
        Contributor("section", scaled(resolved.section_tokens(section), factor), section.name)
        for section in resolved.sections
    ]
    parts += [
        Contributor("tool", scaled(tokens, factor), tool.name)
        for tool, tokens in zip(resolved.tools, resolved.tool_costs, strict=True)
        if tool.name not in deferred
    ]
    parts += [
        Contributor("tool", scaled(resolved.agent_tool_tokens((name,)), factor), name)
        for name in tools.agent_tools
    ]
    parts += [
        Contributor("message", scaled(item.tokens, factor), "", item.seq, item.role, item.pinned)
        for item in entries
    ]
    if usage.summary:
        parts.append(Contributor("summary", usage.summary))
    parts.sort(key=lambda part: -part.tokens)
    return [part for part in parts[:MAX_NAMED] if part.tokens]


def overflow_detail(used: int, limits: Limits, largest: Sequence[Contributor]) -> str:
    """Return a sentence about what does not fit."""
    if used > limits.capacity:
        detail = "No valid payload fits the window"
        needed = f"{used:,} tokens are needed and {limits.capacity:,} are there"
    else:
        detail = "No smaller valid payload can be made"
        needed = f"{used:,} tokens are left"
    if not largest:
        return f"{detail}: {needed}"
    first = largest[0]
    return f"{detail}: {needed}, {first.tokens:,} of them for {first.phrase}"


def suggestions(
    resolved: ResolvedSettings, limits: Limits, usage: Usage, largest: Sequence[Contributor]
) -> list[Suggestion]:
    """Return changes that would help, the simplest first."""
    return [
        *_policy_suggestions(resolved, limits, usage, largest),
        *_window_suggestions(limits, usage),
    ]


def _policy_suggestions(
    resolved: ResolvedSettings, limits: Limits, usage: Usage, largest: Sequence[Contributor]
) -> Iterator[Suggestion]:
    policy = resolved.policy
    large_tokens = _LARGE_SHARE * limits.effective_window
    large = [part for part in largest if part.tokens >= large_tokens]
    texts = [
        part
        for part in large
        if part.role not in (None, Role.TOOL) and part.tokens > MIN_SHORTENED_TOKENS
    ]
    if texts and not policy.messages.offload_oversized:
        yield Suggestion(
            "offload_oversized", "Set messages.offload_oversized in the policy to true"
        )
    if any(part.role is not None for part in large):
        keeps_all = policy.strategy is StrategyName.FULL_HISTORY
        if keeps_all:
            yield Suggestion("change_strategy", "Choose a strategy that reduces the history")
        elif not policy.compaction.enabled:
            yield Suggestion("enable_compaction", "Set compaction.enabled in the policy to true")
        if any(part.pinned for part in large):
            yield Suggestion(
                "unpin", "Unpin the large messages: a pinned message is never left out"
            )
        if keeps_all or not policy.compaction.enabled:  # others have left out what they can
            yield Suggestion("overflow", "POST …/overflow leaves out the oldest half of the turns")
    for part in large:
        if part.kind == "section":
            yield Suggestion("shorten_section", f"Shorten the section {part.name[:_MAX_NAME]!r}")
    if usage.tool_descriptions >= large_tokens:
        yield Suggestion(
            "defer_tools",
            "Give fewer tools, or let agent_tools in the policy have tool_search, so that tools are"
            " deferred until a search finds them",
        )


def _window_suggestions(limits: Limits, usage: Usage) -> Iterator[Suggestion]:
    missing = math.ceil((usage.total - limits.capacity) * (1 + limits.margin))
    room = "" if usage.conversation else ", and leave room for the messages"
    if missing < 0 or (missing == 0 and not room):
        return
    if limits.max_output_tokens - missing >= 1:
        detail = f"Lower max_output_tokens to at most {limits.max_output_tokens - missing:,}{room}"
        yield Suggestion("lower_max_output_tokens", detail)
    detail = (
        f"Take a window of at least {limits.total + missing:,} tokens{room}: a model with a larger"
        " one, or a larger budget.context_window or max_context_tokens"
    )
    yield Suggestion("larger_window", detail)
