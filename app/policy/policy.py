"""The policy: the settings of a conversation, as one nested value.

1. Every setting has a default here. GET returns the effective value of each.
2. The policies of service, agent and conversation are merged in this order, setting by setting:
   the later one overrides. Lists are replaced as a whole.
3. An absent setting is inherited. `null` is a value only where the default is null; in a PATCH it
   removes the setting, which is then inherited again.
4. A policy that can never work is refused when it is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal, cast

from app.common.errors import Problem, ValidationError
from app.common.json_values import build


class StrategyName(StrEnum):
    """The compaction strategies."""

    SANDWICH = "sandwich"
    SLIDING_WINDOW = "sliding_window"
    FULL_HISTORY = "full_history"
    TREE_SUMMARY = "tree_summary"
    RETAIN_SUMMARY = "retain_summary"
    CHAIN = "chain"
    PROVIDER = "provider"


class ChainStep(StrEnum):
    """The steps of the chain strategy."""

    CLEAR_TOOL_RESULTS = "clear_tool_results"
    SUMMARIZE = "summarize"
    TRUNCATE = "truncate"


class CompactionMode(StrEnum):
    """When a due compaction runs: after the turn, or in the build that needs it."""

    BACKGROUND = "background"
    INLINE = "inline"


class SummaryTemplate(StrEnum):
    """What the built-in prompt asks a model for: sections in a fixed order, or free text."""

    SECTIONS = "sections"
    BRIEF = "brief"


class SummaryInput(StrEnum):
    """What a model reads to summarise: a transcript, or the newest payload with an instruction."""

    TRANSCRIPT = "transcript"
    PREFIX = "prefix"


class CounterName(StrEnum):
    """How tokens are counted."""

    TOKENIZER = "tokenizer"
    BYTES_4 = "bytes_4"
    CHARS_4 = "chars_4"
    CHARS_2_5 = "chars_2_5"


class SummaryRole(StrEnum):
    """The role of a summary in a payload."""

    USER = "user"
    SYSTEM = "system"
    AUTO = "auto"


class OnUnknownModel(StrEnum):
    """What a build does for a model without a known context window."""

    STRICT = "strict"
    DERIVE = "derive"


class ToolView(StrEnum):
    """The preview of a large tool result: as much as fits, or a reference with its start."""

    TRUNCATE = "truncate"
    REFERENCE = "reference"


class DynamicPosition(StrEnum):
    """The place of text that changes often: scratchpad, status and notes."""

    TAIL = "tail"
    SYSTEM = "system"
    BEFORE_WINDOW = "before_window"


class StatusPreamble(StrEnum):
    """Whether a build without a status lists the agent's other conversations."""

    AUTO = "auto"
    NONE = "none"


Auto = Literal["auto"]
"""The service computes the value."""
AGENT_TOOL_NAMES = (
    "tool_output_cache",
    "tool_output_cache_grep",
    "read_result",
    "tool_search",
    "compact_context",
    "recall",
)
"""The names of the agent tools: the tools that the service offers to an LLM."""
AgentToolChoice = Literal["auto", "none"]
"""Which agent tools are added to a payload; a list of names is the third choice."""


@dataclass(frozen=True, slots=True)
class SandwichPolicy:
    """Messages kept verbatim at both ends, and the share of the window that triggers."""

    preserve_top: int = 5
    preserve_bottom: int = 5
    compression_threshold: float = 0.75


@dataclass(frozen=True, slots=True)
class SlidingWindowPolicy:
    """The number of newest messages that are kept."""

    keep_last_n: int = 20


@dataclass(frozen=True, slots=True)
class TreeSummaryPolicy:
    """The messages per summary of the tree, and the levels of the tree."""

    chunk_size: int = 20
    levels: int = 3


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When and how summaries are made; ratios are relative to the effective window."""

    enabled: bool = True
    auto: bool = True
    threshold_ratio: float = 0.8
    model: str | None = None
    summary_template: SummaryTemplate = SummaryTemplate.SECTIONS
    summary_input: SummaryInput = SummaryInput.TRANSCRIPT
    summary_prompt: str | None = None
    summary_directives: tuple[str, ...] = ()
    retain_prompt: str | None = None
    retain_directives: tuple[str, ...] = ()
    retain_last_turns: int = 1
    mode: CompactionMode = CompactionMode.BACKGROUND
    target: float = 0.45
    min_gain: float = 0.1
    max_messages: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """The context window and its reserved output in tokens, and the pressure thresholds."""

    context_window: int | None = None
    max_output_tokens: int = 4096
    notice_at: float = 0.80
    compact_trigger: float = 0.95
    hard_block: float = 0.98
    on_unknown_model: OnUnknownModel = OnUnknownModel.STRICT
    counter: CounterName = CounterName.TOKENIZER


@dataclass(frozen=True, slots=True)
class ToolOutputPolicy:
    """Handling of large tool results and of many; sizes are in bytes of UTF-8."""

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
    """Handling of user and assistant texts that are larger than the context window."""

    offload_oversized: bool = True


@dataclass(frozen=True, slots=True)
class GcPolicy:
    """What garbage collection deletes besides uploads without a message."""

    drop_compacted: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """All settings of one conversation."""

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
    status_preamble: StatusPreamble = StatusPreamble.NONE
    agent_tools: AgentToolChoice | tuple[str, ...] = "auto"
    summary_role: SummaryRole = SummaryRole.USER
    preserve_user_messages: bool = False

    @property
    def due_ratio(self) -> float | None:
        """The share of the effective window at which a compaction is due, None for never."""
        match self.strategy:
            case StrategyName.FULL_HISTORY | StrategyName.SLIDING_WINDOW | StrategyName.PROVIDER:
                return None  # the last: the provider decides
            case StrategyName.SANDWICH:
                return self.sandwich.compression_threshold
            case _:
                return self.compaction.threshold_ratio


MAX_TREE_LEVELS = 10
"""A tree with so many levels covers more messages than a log can have."""

MAX_CONTEXT_WINDOW = 10**9
"""The maximum of a context window; a larger one is a mistake in the request."""

MAX_PREVIEW_BYTES = 1_000_000
"""The maximum size of a preview and of a slice that is read, which bounds memory."""

_MIN_CHUNK = 2
_SHARE = "must be above 0 and at most 1"

DEFAULT_POLICY: Mapping[str, Any] = asdict(Policy())
"""Every setting with its default, nested as in JSON."""


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` overridden by the settings of `patch`; a null setting is removed."""
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = merge(merged.get(key) or {}, value)
        else:
            merged[key] = value
    return merged


def effective(*levels: Mapping[str, Any] | None) -> Policy:
    """Return the merged policy of these levels, each overriding those before it.

    Raises ValidationError for a combination that can never work (rule 4).
    """
    merged: dict[str, Any] = {}
    for level in levels:
        merged = merge(merged, level or {})
    policy = cast(Policy, build(Policy, merged, ""))
    problems = tuple(_problems(policy))
    if problems:
        raise ValidationError(problems[0].detail, problems=problems)
    return policy


def _problems(policy: Policy) -> list[Problem]:
    rules = (*_strategy_rules(policy), *_compaction_rules(policy.compaction))
    rules += (*_budget_rules(policy.budget), *_tool_output_rules(policy.tool_output))
    return [Problem(pointer, detail) for is_valid, pointer, detail in rules if not is_valid]


def _strategy_rules(policy: Policy) -> Iterator[tuple[bool, str, str]]:
    """Yield whether each rule is obeyed, with the pointer and the text of its problem."""
    sandwich, tree = policy.sandwich, policy.tree_summary
    yield sandwich.preserve_top >= 0, "/sandwich/preserve_top", "must not be negative"
    yield sandwich.preserve_bottom >= 1, "/sandwich/preserve_bottom", "must be at least 1"
    yield _is_share(sandwich.compression_threshold), "/sandwich/compression_threshold", _SHARE
    keep_last_n = policy.sliding_window.keep_last_n
    yield keep_last_n >= 1, "/sliding_window/keep_last_n", "must be at least 1"
    yield tree.chunk_size >= _MIN_CHUNK, "/tree_summary/chunk_size", "must be at least 2"
    levels_range = f"must be from 1 to {MAX_TREE_LEVELS}"
    yield 1 <= tree.levels <= MAX_TREE_LEVELS, "/tree_summary/levels", levels_range
    yield len(policy.chain) > 0, "/chain", "must have one step or more"
    yield len(set(policy.chain)) == len(policy.chain), "/chain", "must not repeat a step"
    yield _is_share(policy.tool_deferral_threshold), "/tool_deferral_threshold", _SHARE
    if not isinstance(policy.agent_tools, str):
        detail = f"Only {', '.join(AGENT_TOOL_NAMES)} may be listed"
        yield set(policy.agent_tools) <= set(AGENT_TOOL_NAMES), "/agent_tools", detail


def _compaction_rules(compaction: CompactionPolicy) -> Iterator[tuple[bool, str, str]]:
    max_messages = compaction.max_messages
    yield 0 < compaction.target < 1, "/compaction/target", "must be between 0 and 1"
    yield 0 <= compaction.min_gain < 1, "/compaction/min_gain", "must be from 0 to below 1"
    yield _is_share(compaction.threshold_ratio), "/compaction/threshold_ratio", _SHARE
    turns = compaction.retain_last_turns
    yield turns >= 0, "/compaction/retain_last_turns", "must not be negative"
    is_valid = max_messages is None or max_messages >= 1
    yield is_valid, "/compaction/max_messages", "must be at least 1"


def _budget_rules(budget: BudgetPolicy) -> Iterator[tuple[bool, str, str]]:
    window, output = budget.context_window, budget.max_output_tokens
    pointer = "/budget/context_window"
    yield window is None or window > 0, pointer, "Context limit must be positive"
    yield (window or 0) <= MAX_CONTEXT_WINDOW, pointer, f"must be at most {MAX_CONTEXT_WINDOW}"
    yield output > 0, "/budget/max_output_tokens", "must be positive"
    is_smaller = window is None or window <= 0 or output < window
    detail = "max_output_tokens must be smaller than context_window"
    yield is_smaller, "/budget/max_output_tokens", detail
    for name in ("notice_at", "compact_trigger", "hard_block"):
        yield _is_share(getattr(budget, name)), f"/budget/{name}", _SHARE
    detail = "hard_block must not be below compact_trigger"
    yield budget.compact_trigger <= budget.hard_block, "/budget/hard_block", detail


def _tool_output_rules(output: ToolOutputPolicy) -> Iterator[tuple[bool, str, str]]:
    threshold = "/tool_output/offload_threshold_bytes"
    yield output.offload_threshold_bytes >= 0, threshold, "must not be negative"
    for name in ("max_message_bytes", "max_line_length"):
        detail = f"must be from 1 to {MAX_PREVIEW_BYTES}"
        yield 1 <= getattr(output, name) <= MAX_PREVIEW_BYTES, f"/tool_output/{name}", detail
    for name in ("context_budget_tokens", "clear_at_least"):
        value = getattr(output, name)
        yield value == "auto" or value >= 0, f"/tool_output/{name}", "must not be negative"


def _is_share(ratio: float) -> bool:
    return 0 < ratio <= 1


def as_json(policy: Policy) -> dict[str, Any]:
    """Return all settings as nested plain values."""
    return asdict(policy)
