"""The policy: how a conversation's context is kept, as one nested value.

1. Every leaf has a default here; GET shows the effective value of each (decision 22).
2. Layers merge per leaf, later over earlier: service, agent, conversation. Lists replace.
3. An absent leaf inherits. `null` is a value only where the default is null; in a PATCH it
   removes the leaf from its layer, which makes it inherit again.
4. A policy that could never work is refused when it is set, not when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from app.domain.common.errors import Problem, ValidationError


class StrategyName(StrEnum):
    """The strategies (D)."""

    SANDWICH = "sandwich"
    SLIDING_WINDOW = "sliding_window"
    FULL_HISTORY = "full_history"
    TREE_SUMMARY = "tree_summary"
    RETAIN_SUMMARY = "retain_summary"
    CHAIN = "chain"


class ChainStep(StrEnum):
    """The steps a chain is made of (D5)."""

    CLEAR_TOOL_RESULTS = "clear_tool_results"
    SUMMARIZE = "summarize"
    TRUNCATE = "truncate"


class CompactionMode(StrEnum):
    """Where a due compaction runs: after the turn, or inside the build that needs it (E6)."""

    BACKGROUND = "background"
    INLINE = "inline"


class CounterName(StrEnum):
    """How tokens are counted (J2)."""

    TOKENIZER = "tokenizer"
    BYTES_4 = "bytes_4"
    CHARS_4 = "chars_4"
    CHARS_2_5 = "chars_2_5"


class SummaryRole(StrEnum):
    """The role a summary is shown with (D1)."""

    USER = "user"
    SYSTEM = "system"
    AUTO = "auto"


class OnUnknownModel(StrEnum):
    """What to do about a model without a known window (C2)."""

    STRICT = "strict"
    DERIVE = "derive"


class ToolView(StrEnum):
    """How a large tool result is shown: as much as fits, or a reference with its start (F2)."""

    TRUNCATE = "truncate"
    REFERENCE = "reference"


class DynamicPosition(StrEnum):
    """Where text that changes often stands: scratchpad, status and notes (B4, G5)."""

    TAIL = "tail"
    SYSTEM = "system"
    BEFORE_WINDOW = "before_window"


class StatusPreamble(StrEnum):
    """Whether a build without a status is told of the agent's other conversations (B4)."""

    AUTO = "auto"
    NONE = "none"


Auto = Literal["auto"]
"""A value that is worked out (decision 22)."""
OWN_TOOLS = (
    "tool_output_cache",
    "tool_output_cache_grep",
    "read_result",
    "tool_search",
    "compact_context",
    "recall",
)
"""The tools that the service offers to an LLM (L1)."""
AgentTools = Literal["auto", "none"]
"""Which of the agent's own tools are added to a payload, where they are not listed (L1)."""


@dataclass(frozen=True, slots=True)
class SandwichPolicy:
    """Messages kept verbatim at both ends, and the share of the window that triggers (D1)."""

    preserve_top: int = 5
    preserve_bottom: int = 5
    compression_threshold: float = 0.7


@dataclass(frozen=True, slots=True)
class SlidingWindowPolicy:
    """How many of the newest messages stay (D2)."""

    keep_last_n: int = 20


@dataclass(frozen=True, slots=True)
class TreeSummaryPolicy:
    """How many messages one summary of the tree takes in, and how many levels there are (D3)."""

    chunk_size: int = 20
    levels: int = 3


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When and how summaries are made (E1, E6, D7); ratios are of the effective window."""

    enabled: bool = True
    auto: bool = True
    threshold_ratio: float = 0.8
    model: str | None = None
    summary_prompt: str | None = None
    summary_directives: tuple[str, ...] = ()
    retain_prompt: str | None = None
    retain_directives: tuple[str, ...] = ()
    retain_last_turns: int = 1
    mode: CompactionMode = CompactionMode.BACKGROUND
    target: float = 0.5
    min_gain: float = 0.1
    max_messages: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """The window in tokens, its output reserve, and the pressure thresholds (C2, C3)."""

    context_window: int | None = None
    max_output_tokens: int = 4096
    notice_at: float = 0.80
    compact_trigger: float = 0.95
    hard_block: float = 0.98
    on_unknown_model: OnUnknownModel = OnUnknownModel.STRICT
    counter: CounterName = CounterName.TOKENIZER


@dataclass(frozen=True, slots=True)
class ToolOutputPolicy:
    """What becomes of large tool results (F1, F2) and of many (F3); sizes are in bytes of UTF-8."""

    enabled: bool = True
    offload_threshold_bytes: int = 4096
    context_budget_tokens: int | Auto = "auto"
    max_message_bytes: int = 51_200
    max_line_length: int = 2000
    view: ToolView = ToolView.TRUNCATE
    clear_at_least: int | Auto = "auto"
    exclude_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessagesPolicy:
    """What becomes of user and assistant texts that are too large for the window."""

    offload_oversized: bool = True


@dataclass(frozen=True, slots=True)
class GcPolicy:
    """What the garbage collection takes besides uploads that no message refers to (F7)."""

    drop_compacted: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """All settings of one conversation, complete."""

    strategy: StrategyName = StrategyName.SANDWICH
    sandwich: SandwichPolicy = field(default_factory=SandwichPolicy)
    sliding_window: SlidingWindowPolicy = field(default_factory=SlidingWindowPolicy)
    tree_summary: TreeSummaryPolicy = field(default_factory=TreeSummaryPolicy)
    chain: tuple[ChainStep, ...] = tuple(ChainStep)
    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    budget: BudgetPolicy = field(default_factory=BudgetPolicy)
    tool_output: ToolOutputPolicy = field(default_factory=ToolOutputPolicy)
    messages: MessagesPolicy = field(default_factory=MessagesPolicy)
    gc: GcPolicy = field(default_factory=GcPolicy)
    tool_deferral_threshold: float = 0.10
    dynamic_position: DynamicPosition = DynamicPosition.TAIL
    status_preamble: StatusPreamble = StatusPreamble.AUTO
    agent_tools: AgentTools | tuple[str, ...] = "auto"
    summary_role: SummaryRole = SummaryRole.USER
    preserve_user_messages: bool = False


MAX_LEVELS = 10
"""A tree this high stands for more messages than a log can have."""

MAX_TOKENS = 10**9
"""No window is larger; what is would be a mistake in the request."""

MAX_VIEW_BYTES = 1_000_000
"""No view, and no slice that is read, is larger: memory follows it."""

_MIN_CHUNK = 2
_SHARE = "must be above 0 and at most 1"

DEFAULTS: Mapping[str, Any] = asdict(Policy())
"""Every leaf with its default, nested as in JSON."""


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the leaves of `patch` laid over it; a null leaf is removed."""
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = merge(merged.get(key) or {}, value)
        else:
            merged[key] = value
    return merged


def effective(*layers: Mapping[str, Any] | None) -> Policy:
    """Build the policy that the layers, weakest first, add up to.

    Raises ValidationError for a combination that could never work (rule 4).
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, layer or {})
    policy = cast(Policy, _build(Policy, merged, ""))
    problems = tuple(_problems(policy))
    if problems:
        raise ValidationError(problems[0].detail, problems=problems)
    return policy


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _build(kind: type, values: Mapping[str, Any], pointer: str) -> object:
    known = {entry.name: entry for entry in fields(kind)}
    for key in values:
        if key not in known:
            raise ValidationError.at(f"{pointer}/{key}", f"Unknown policy setting {key!r}")
    arguments = {}
    for key, value in values.items():
        hint = _hints(kind)[key]
        place = f"{pointer}/{key}"
        if is_dataclass(hint) and isinstance(hint, type):
            if not isinstance(value, Mapping):
                raise ValidationError.at(place, "An object is needed here")
            arguments[key] = _build(hint, value, place)
        else:
            arguments[key] = _leaf(hint, value, place)
    return kind(**arguments)


def _leaf(hint: Any, value: Any, pointer: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        try:
            return hint(value)
        except ValueError:
            words = ", ".join(hint)
            raise ValidationError.at(pointer, f"{value!r} is none of {words}") from None
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ValidationError.at(pointer, "A list of strings is needed here")
        kind = get_args(hint)[0]
        if kind is str:
            return tuple(value)
        return tuple(_leaf(kind, item, f"{pointer}/{i}") for i, item in enumerate(value))
    if hint in _WORDS:
        return _word(hint, value, pointer)
    wanted = {bool: bool, int: int, float: (int, float), int | None: int, str | None: str}[hint]
    if not isinstance(value, cast(Any, wanted)) or (isinstance(value, bool) and hint is not bool):
        raise ValidationError.at(pointer, f"{value!r} has the wrong type")
    return value


_WORDS: Mapping[Any, tuple[Any, tuple[str, ...]]] = {
    int | Auto: (int, get_args(Auto)),
    AgentTools | tuple[str, ...]: (tuple[str, ...], get_args(AgentTools)),
}
"""Leaves that take one of a few words in the place of their kind of value."""


def _word(hint: Any, value: Any, pointer: str) -> Any:
    kind, words = _WORDS[hint]
    if isinstance(value, str):
        if value not in words:
            raise ValidationError.at(pointer, f"{value!r} is none of {', '.join(words)}")
        return value
    return _leaf(kind, value, pointer)


def _problems(policy: Policy) -> list[Problem]:
    rules = (*_strategy_rules(policy), *_compaction_rules(policy.compaction))
    rules += (*_budget_rules(policy.budget), *_tool_output_rules(policy.tool_output))
    return [Problem(pointer, detail) for holds, pointer, detail in rules if not holds]


def _strategy_rules(policy: Policy) -> Iterator[tuple[bool, str, str]]:
    """Yield what has to hold, with the place and the text of a problem if it does not."""
    sandwich, tree = policy.sandwich, policy.tree_summary
    yield sandwich.preserve_top >= 0, "/sandwich/preserve_top", "must not be negative"
    yield sandwich.preserve_bottom >= 1, "/sandwich/preserve_bottom", "must be at least 1"
    yield _is_share(sandwich.compression_threshold), "/sandwich/compression_threshold", _SHARE
    kept, place = policy.sliding_window.keep_last_n, "/sliding_window/keep_last_n"
    yield kept >= 1, place, "must be at least 1"
    yield tree.chunk_size >= _MIN_CHUNK, "/tree_summary/chunk_size", "must be at least 2"
    wanted = f"must be from 1 to {MAX_LEVELS}"
    yield 1 <= tree.levels <= MAX_LEVELS, "/tree_summary/levels", wanted
    yield len(policy.chain) > 0, "/chain", "must have one step or more"
    yield len(set(policy.chain)) == len(policy.chain), "/chain", "No step may stand there twice"
    yield _is_share(policy.tool_deferral_threshold), "/tool_deferral_threshold", _SHARE
    if not isinstance(policy.agent_tools, str):
        wanted = f"Only {', '.join(OWN_TOOLS)} may be listed"
        yield set(policy.agent_tools) <= set(OWN_TOOLS), "/agent_tools", wanted


def _compaction_rules(compaction: CompactionPolicy) -> Iterator[tuple[bool, str, str]]:
    most = compaction.max_messages
    yield 0 < compaction.target < 1, "/compaction/target", "must be between 0 and 1"
    yield 0 <= compaction.min_gain < 1, "/compaction/min_gain", "must be from 0 to below 1"
    yield _is_share(compaction.threshold_ratio), "/compaction/threshold_ratio", _SHARE
    turns = compaction.retain_last_turns
    yield turns >= 0, "/compaction/retain_last_turns", "must not be negative"
    yield most is None or most >= 1, "/compaction/max_messages", "must be at least 1"


def _budget_rules(budget: BudgetPolicy) -> Iterator[tuple[bool, str, str]]:
    window, output = budget.context_window, budget.max_output_tokens
    place = "/budget/context_window"
    yield window is None or window > 0, place, "Context limit must be positive"
    yield (window or 0) <= MAX_TOKENS, place, f"must be at most {MAX_TOKENS}"
    yield output > 0, "/budget/max_output_tokens", "must be positive"
    smaller = window is None or window <= 0 or output < window
    wanted = "max_output_tokens must be smaller than context_window"
    yield smaller, "/budget/max_output_tokens", wanted
    for name in ("notice_at", "compact_trigger", "hard_block"):
        yield _is_share(getattr(budget, name)), f"/budget/{name}", _SHARE
    wanted = "hard_block must not be below compact_trigger"
    yield budget.compact_trigger <= budget.hard_block, "/budget/hard_block", wanted


def _tool_output_rules(output: ToolOutputPolicy) -> Iterator[tuple[bool, str, str]]:
    threshold = "/tool_output/offload_threshold_bytes"
    yield output.offload_threshold_bytes >= 0, threshold, "must not be negative"
    for name in ("max_message_bytes", "max_line_length"):
        wanted = f"must be from 1 to {MAX_VIEW_BYTES}"
        yield 1 <= getattr(output, name) <= MAX_VIEW_BYTES, f"/tool_output/{name}", wanted
    for name in ("context_budget_tokens", "clear_at_least"):
        value = getattr(output, name)
        yield value == "auto" or value >= 0, f"/tool_output/{name}", "must not be negative"


def _is_share(ratio: float) -> bool:
    return 0 < ratio <= 1


def as_json(policy: Policy) -> dict[str, Any]:
    """Return the policy as nested plain values, every leaf present."""
    return asdict(policy)
