"""Usage as providers report it, and what it says about compacting (E2, J4).

1. Input, cache writes, cache reads and output are disjoint: their sum is the whole call.
2. OpenAI and Gemini count cached tokens among their input, Anthropic and Bedrock beside it. An
   object is read by its own shape, whatever format the call was made in.
3. Where a provider went through several steps by itself, the last one counts: that is what the
   window held, and the next call starts from.
4. What a provider reported is truer than a count, but only of the payload it was reported for:
   tokens appended since are added, and usage of an older epoch says nothing any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, assert_never

from app.domain.common.errors import ValidationError
from app.domain.common.messages import FormatName
from app.domain.common.policy import CompactionPolicy, StrategyName
from app.domain.conversations.conversation import ConversationState
from app.domain.conversations.epoch import Epoch
from app.domain.models.budget import Limits, Pressure, read_pressure
from app.domain.payload.epochs import OWN_WINDOW, Start
from app.domain.prompt.resolved_settings import ResolvedSettings

MAX_REPORTED = 10**12
"""Tokens that no call has."""
_STEPS = ("message", "fallback_message")
_READ_NAMES = ("cache_read_input_tokens", "prompt_cache_hit_tokens")


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of one call (S1 2.3); `input_tokens` leaves out what the cache took or gave."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_read_tokens: int = 0

    @property
    def sent_tokens(self) -> int:
        """The tokens of the payload, cached or not."""
        return self.input_tokens + self.cache_creation_tokens + self.cache_read_tokens

    @property
    def total_tokens(self) -> int:
        """All tokens of the call (rule 1)."""
        return self.sent_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class CallUsage:
    """A provider's usage object, read; `has_steps` says that it sent more than it was given."""

    usage: TokenUsage
    has_steps: bool = False


@dataclass(frozen=True, slots=True)
class UsageReport:
    """A stored report: the object as it came, and what was read from it (J4).

    `epoch` is that of its lane, None where nothing was ever built for it. `estimated_tokens` is
    what the payload was counted at before the factor, None where that cannot be known.
    """

    report_id: str
    model: str
    format: FormatName
    epoch: int | None
    through_seq: int
    usage: TokenUsage
    estimated_tokens: int | None
    given: str
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """A call's usage, the epoch it belongs to, and the tokens appended after it."""

    usage: TokenUsage
    epoch: int
    appended_tokens: int = 0


# --- reading --------------------------------------------------------------------------------


class UsageShape(StrEnum):
    """Whose usage object it is; gateways report one provider's object for another's call.

    `PLAIN` has no more than `input_tokens` and `output_tokens`, which mean the same to Anthropic
    and to OpenAI's Responses as long as nothing is cached.
    """

    CHAT = "chat"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    PLAIN = "plain"
    GEMINI = "gemini"
    CONVERSE = "converse"

    @property
    def formats(self) -> tuple[FormatName, ...]:
        """The formats whose own provider reports it; Bedrock's Converse goes with every one."""
        match self:
            case UsageShape.CHAT:
                return (FormatName.OPENAI_CHAT,)
            case UsageShape.RESPONSES:
                return (FormatName.OPENAI_RESPONSES,)
            case UsageShape.ANTHROPIC:
                return (FormatName.ANTHROPIC,)
            case UsageShape.PLAIN:
                return (FormatName.ANTHROPIC, FormatName.OPENAI_RESPONSES)
            case UsageShape.GEMINI:
                return (FormatName.GEMINI,)
            case UsageShape.CONVERSE:
                return tuple(FormatName)
            case _:
                assert_never(self)


_OWN_SHAPES = {
    FormatName.OPENAI_CHAT: UsageShape.CHAT,
    FormatName.OPENAI_RESPONSES: UsageShape.RESPONSES,
    FormatName.ANTHROPIC: UsageShape.ANTHROPIC,
    FormatName.GEMINI: UsageShape.GEMINI,
}
_INPUT_NAMES = {
    "prompt_token_count": UsageShape.GEMINI,
    "promptTokenCount": UsageShape.GEMINI,
    "prompt_tokens": UsageShape.CHAT,
    "inputTokens": UsageShape.CONVERSE,
    "input_tokens": UsageShape.PLAIN,
}
"""What each shape calls its input; where several are given, the first one here counts."""


def usage_shape(given: Mapping[str, Any], format: FormatName | None = None) -> UsageShape:
    """Tell by its own fields whose usage object this is; fields that are null tell least.

    The format decides only where the fields are both Anthropic's and OpenAI's. Raises
    ValidationError for an object of no known provider.
    """
    known = [name for name, value in given.items() if value is not None]
    shapes = (
        shape for names in (known, given) for name, shape in _INPUT_NAMES.items() if name in names
    )
    shape = next(shapes, None)
    if shape is None:
        raise ValidationError.at("/usage", "This is the usage object of no known provider")
    if shape is not UsageShape.PLAIN:
        return shape
    return _with_cache(known, format) or _with_cache(given, format) or shape


def _with_cache(names: Collection[str], format: FormatName | None) -> UsageShape | None:
    """Tell whether `input_tokens` holds the cached ones, None where no field says so.

    OpenAI's Responses include them and Anthropic does not.
    """
    is_openai = "input_tokens_details" in names
    if any(name.startswith("cache_") for name in names) or "iterations" in names:
        is_both = is_openai and format is not FormatName.ANTHROPIC
        return UsageShape.RESPONSES if is_both else UsageShape.ANTHROPIC
    return UsageShape.RESPONSES if is_openai or "total_tokens" in names else None


def read_usage(given: Mapping[str, Any], format: FormatName) -> CallUsage:
    """Read a usage object, of whatever shape, of a call in this format (J4).

    OpenAI's Chat form is LiteLLM's as well, with the names of other providers beside it. Fields
    nobody knows are let through. Raises ValidationError with the place of a number that cannot be.
    """
    try:
        shape = usage_shape(given, format)
    except ValidationError:
        shape = _OWN_SHAPES[format]  # which says what of its fields is needed
    match shape:
        case UsageShape.CHAT:
            return _chat(given)
        case UsageShape.RESPONSES:
            return _responses(given)
        case UsageShape.ANTHROPIC | UsageShape.PLAIN:
            return _anthropic(given)
        case UsageShape.GEMINI:
            return _gemini(given)
        case UsageShape.CONVERSE:
            return _converse(given)
        case _:
            assert_never(shape)


def _chat(given: Mapping[str, Any]) -> CallUsage:
    sent = _tokens(given, "prompt_tokens", needed=True)
    details = _object(given, "prompt_tokens_details")
    place = "/usage/prompt_tokens_details"
    read = [_tokens(details, "cached_tokens", at=place)]
    read += [_tokens(given, name) for name in _READ_NAMES]
    written = [_tokens(details, "cache_write_tokens", "cache_creation_tokens", at=place)]
    written.append(_tokens(given, "cache_creation_input_tokens"))
    usage = _split(sent, max(read), max(written), _tokens(given, "completion_tokens"), place)
    return _last_step(given, usage)


def _responses(given: Mapping[str, Any]) -> CallUsage:
    details, place = _object(given, "input_tokens_details"), "/usage/input_tokens_details"
    usage = _split(
        _tokens(given, "input_tokens", needed=True),
        _tokens(details, "cached_tokens", at=place),
        _tokens(details, "cache_write_tokens", at=place),
        _tokens(given, "output_tokens"),
        place,
    )
    return CallUsage(usage)


def _split(sent: int, read: int, written: int, output: int, place: str) -> TokenUsage:
    """Take cached tokens out of an input that includes them; one read and written is read."""
    if max(read, written) > sent:
        raise ValidationError.at(place, f"More cached tokens than the {sent} of the input")
    written = min(written, sent - read)
    return TokenUsage(sent - read - written, output, written, read)


def _anthropic(given: Mapping[str, Any]) -> CallUsage:
    return _last_step(given, _anthropic_step(given, "/usage"))


def _last_step(given: Mapping[str, Any], whole: TokenUsage) -> CallUsage:
    """Return the last of Anthropic's steps, which LiteLLM passes on, else the whole (rule 3)."""
    steps = _steps(given.get("iterations"))
    if not steps:
        return CallUsage(whole, _was_served(given))
    made = [
        _anthropic_step(step, f"/usage/iterations/{place}")
        for place, step in steps
        if step.get("type") in _STEPS
    ]
    return CallUsage(made[-1] if made else whole, len(steps) > 1 or _was_served(given))


def _steps(given: Any) -> list[tuple[int, Mapping[str, Any]]]:
    if given is None:
        return []
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValidationError.at("/usage/iterations", "A list is needed")
    for place, step in enumerate(given):
        if not isinstance(step, Mapping):
            raise ValidationError.at(f"/usage/iterations/{place}", "An object is needed")
    return list(enumerate(given))


def _anthropic_step(given: Mapping[str, Any], at: str) -> TokenUsage:
    written = _tokens(given, "cache_creation_input_tokens", at=at)
    by_lifetime = _object(given, "cache_creation", at=at)
    split = sum(
        _tokens(by_lifetime, name, at=f"{at}/cache_creation")
        for name in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
    )
    return TokenUsage(
        input_tokens=_tokens(given, "input_tokens", at=at, needed=True),
        output_tokens=_tokens(given, "output_tokens", at=at),
        cache_creation_tokens=max(written, split),
        cache_read_tokens=_tokens(given, "cache_read_input_tokens", at=at),
    )


def _gemini(given: Mapping[str, Any]) -> CallUsage:
    sent = _tokens(given, "prompt_token_count", "promptTokenCount", needed=True)
    read = _tokens(given, "cached_content_token_count", "cachedContentTokenCount")
    answer = _tokens(given, "candidates_token_count", "candidatesTokenCount")
    answer += _tokens(given, "thoughts_token_count", "thoughtsTokenCount")
    served = _tokens(given, "tool_use_prompt_token_count", "toolUsePromptTokenCount")
    usage = _split(sent, read, 0, answer, "/usage/cached_content_token_count")
    whole = TokenUsage(usage.input_tokens + served, answer, 0, read)
    return CallUsage(whole, has_steps=served > 0)


def _converse(given: Mapping[str, Any]) -> CallUsage:
    """Read Bedrock's object, whose input leaves out the cached tokens."""
    usage = TokenUsage(
        input_tokens=_tokens(given, "inputTokens", needed=True),
        output_tokens=_tokens(given, "outputTokens"),
        cache_creation_tokens=_tokens(given, "cacheWriteInputTokens"),
        cache_read_tokens=_tokens(given, "cacheReadInputTokens"),
    )
    return CallUsage(usage)


def _was_served(given: Mapping[str, Any]) -> bool:
    """Whether the provider ran tools of its own, whose results it sent to itself."""
    requests = given.get("server_tool_use")
    return isinstance(requests, Mapping) and any(
        isinstance(count, int) and count > 0 for count in requests.values()
    )


def _object(given: Mapping[str, Any], name: str, at: str = "/usage") -> Mapping[str, Any]:
    found = given.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise ValidationError.at(f"{at}/{name}", "An object is needed")
    return found


def _tokens(given: Mapping[str, Any], *names: str, at: str = "/usage", needed: bool = False) -> int:
    """Return the first of these numbers that is there, 0 where none is."""
    for name in names:
        found = given.get(name)
        if found is None:
            continue
        if type(found) is not int or not 0 <= found <= MAX_REPORTED:
            raise ValidationError.at(f"{at}/{name}", f"A whole number from 0 to {MAX_REPORTED}")
        return found
    if needed:
        raise ValidationError.at(f"{at}/{names[0]}", "The tokens of the input are needed")
    return 0


# --- judging --------------------------------------------------------------------------------


def current_epoch(newest: Epoch | None, state: ConversationState) -> int:
    """Return the epoch of a lane's next build: another one as soon as the view has changed."""
    if newest is None:
        return int(state.view_version > 0)
    return newest.epoch + (newest.view_version != state.view_version)


def judged_tokens(estimate: int, reported: ReportedUsage | None, epoch: int) -> int:
    """Return the larger of reported and estimated tokens; a report of an older epoch is none."""
    if reported is None or reported.epoch < epoch:
        return estimate
    return max(estimate, reported.usage.total_tokens + reported.appended_tokens)


def should_compact(
    policy: CompactionPolicy,
    limits: Limits,
    estimate: int,
    reported: ReportedUsage | None,
    epoch: int,
) -> bool:
    """Whether the larger of the reported and the estimated tokens makes a compaction due (E2)."""
    if not (policy.enabled and policy.auto) or limits.due_at is None:
        return False
    return limits.reached(judged_tokens(estimate, reported, epoch), limits.due_at)


def is_suspended(state: ConversationState, used: int, limits: Limits) -> bool:
    """Whether a head is left alone until it has grown, as after an undo (decision 24)."""
    if state.tokens >= state.resume_at:
        return False
    return read_pressure(used, limits).pressure not in (Pressure.COMPACT, Pressure.BLOCKED)


# --- comparing ------------------------------------------------------------------------------


def incomparable(
    newest: Epoch | None,
    start: Start | None,
    epoch: int | None,
    through: int,
    state: ConversationState,
) -> str | None:
    """Return why nobody can tell any more what a report's payload was counted at, None if so.

    A payload is known as long as it is its lane's newest epoch, shows what the head tells of, and
    was made for the policy's own window.
    """
    if newest is None or start is None:
        return "never_built"
    if epoch != newest.epoch or through < newest.start_seq:
        return "older_epoch"
    if newest.view_version != state.view_version:
        return "view_changed"
    if newest.window != OWN_WINDOW or start.degraded:
        return "reduced"
    return None


def unlike(newest: Epoch, start: Start, resolved: ResolvedSettings) -> str | None:
    """Return why the stored settings do not make this epoch's payloads, None if they do."""
    if (newest.sections_hash, newest.tools_hash) != (resolved.sections_hash, resolved.tools_hash):
        return "request_settings"
    view = start.view
    is_plain = len(view.spans) == 1 and not (view.trimmed_through or view.summaries)
    if resolved.policy.strategy is StrategyName.SLIDING_WINDOW and not is_plain:
        return "reduced"
    return None


def counted_tokens(
    resolved: ResolvedSettings, start: Start, state: ConversationState, shown: int
) -> int:
    """Return what a payload showing so many tokens of the log was counted at, uncorrected."""
    fixed = resolved.raw_fixed.system_prompt + resolved.raw_fixed.skill_prompts
    return fixed + resolved.tool_tokens(start.tools) + state.summary_tokens + shown
