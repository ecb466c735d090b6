"""The policy: the settings of a conversation, as one nested value.

1. Every setting has its type, bounds, text and default here. What a request may change, what GET
   answers, the environment variables and docs/configuration.md are made from it.
2. The policies of service, agent and conversation are merged in this order, setting by setting:
   the later one overrides. Lists are replaced as a whole.
3. An absent setting is inherited. `null` in a PATCH removes the setting, which is then inherited
   again. So null is never set; it shows that there is no value.
4. A policy that can never work is refused when it is set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic import ValidationError as PydanticError

from app.common.environment import SettingsError, one_line, split, variable
from app.common.errors import Problem, ValidationError
from app.common.schema_errors import NAME_PATTERN, in_body, schema_problems


class StrategyName(StrEnum):
    """The compaction strategies."""

    SANDWICH = "sandwich"
    SLIDING_WINDOW = "sliding_window"
    FULL_HISTORY = "full_history"
    TREE_SUMMARY = "tree_summary"
    RETAIN_SUMMARY = "retain_summary"
    CHAIN = "chain"
    PROVIDER = "provider"


class CounterName(StrEnum):
    """How tokens are counted."""

    TOKENIZER = "tokenizer"
    BYTES_4 = "bytes_4"
    CHARS_4 = "chars_4"
    CHARS_2_5 = "chars_2_5"


class PreviewMode(StrEnum):
    """The preview of a large tool result: as much as fits, or a reference with its start."""

    TRUNCATE = "truncate"
    REFERENCE = "reference"


AgentToolName = Literal[
    "tool_output_cache",
    "tool_output_cache_grep",
    "read_result",
    "tool_search",
    "compact_context",
    "recall",
    "pin_messages",
]
AGENT_TOOL_NAMES: tuple[str, ...] = get_args(AgentToolName)
"""The names of the agent tools: the tools that the service offers to an LLM."""

MAX_CONTEXT_WINDOW = 10**9
"""The maximum of a context window; a larger one is a mistake in the request."""

MAX_PREVIEW_BYTES = 1_000_000
"""The maximum size of a preview and of a slice that is read, which bounds memory."""


Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_CONTEXT_WINDOW)]
Positive = Annotated[int, Field(strict=True, ge=1, le=MAX_CONTEXT_WINDOW)]
PreviewSize = Annotated[int, Field(strict=True, ge=1, le=MAX_PREVIEW_BYTES)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Text = Annotated[str, Field(strict=True, max_length=32_000)]
Texts = Annotated[tuple[Text, ...], Field(max_length=100)]
Auto = Literal["auto"]
"""The service computes the value."""


def _as_published(schema: dict[str, Any]) -> None:
    """Remove line ends, and defaults: a setting without a value is inherited."""
    for setting in schema["properties"].values():
        setting.pop("default", None)
        if "description" in setting:
            setting["description"] = one_line(setting["description"])


class Group(BaseModel):
    """Settings that belong together. A text below a setting describes it to callers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra=_as_published,
        json_schema_serialization_defaults_required=True,
    )


class SandwichPolicy(Group):
    """Settings of the strategy `sandwich`."""

    preserve_top: Count = 5
    """Messages kept verbatim at the start."""
    preserve_bottom: Positive = 5
    """Messages kept verbatim at the end."""


class SlidingWindowPolicy(Group):
    """Settings of the strategy `sliding_window`."""

    keep_last_n: Positive = 20
    """Newest messages in a payload."""


class TreeSummaryPolicy(Group):
    """Settings of the strategy `tree_summary`."""

    chunk_size: Annotated[int, Field(strict=True, ge=2, le=MAX_CONTEXT_WINDOW)] = 20
    """About so many messages in one summary."""


class CompactionPolicy(Group):
    """When and how summaries are made."""

    enabled: Flag = True
    """false: never compact; oversized texts are shortened; what is still too long is refused."""
    auto: Flag = True
    """false: only on request, or if the payload would not fit."""
    threshold_ratio: Share = 0.85
    """Share of the effective window at which a compaction is due."""
    model: Annotated[str, Field(strict=True, max_length=256, pattern=NAME_PATTERN)] | None = None
    """Model that writes summaries; `extractive` is built in and calls none."""
    summary_prompt: Text | None = None
    """Prompt for summaries, instead of the built-in one."""
    summary_directives: Texts = ()
    """Instructions added to the prompt."""
    retain_prompt: Text | None = None
    """Prompt for a text kept verbatim beside the summary; null: the directives alone."""
    retain_directives: Texts = ()
    """Instructions added to that prompt."""
    retain_last_turns: Count = 1
    """Turns that `retain_summary` keeps verbatim at the end."""
    mode: Literal["background", "inline"] = "background"
    """`background`: by a worker, once due; `inline`: only in a build that needs it."""
    target: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.45
    """Share of the effective window to which a compaction reduces the payload."""
    max_messages: Positive | None = None
    """Verbatim messages above which a compaction is due."""


class BudgetPolicy(Group):
    """The context window and its thresholds."""

    context_window: Positive | Literal["derive"] | None = None
    """Tokens of the context window; null: the model's, and a model without one is refused;
    `derive`: max_output_tokens x 4 for such a model.
    """
    max_output_tokens: Positive = 4096
    """Tokens reserved for the response; fewer than the context window."""
    notice_at: Share = 0.90
    """Share of the effective window at which `notice` is true."""
    compact_trigger: Share = 0.95
    """Share at which a build compacts before it returns."""
    counter: CounterName = CounterName.TOKENIZER
    """How tokens are counted, fixed once a conversation has messages: `tokenizer`, or bytes or
    characters divided, `bytes_4`, `chars_4`, `chars_2_5`.
    """


class ToolOutputPolicy(Group):
    """How large tool results are stored and shortened in payloads."""

    enabled: Flag = True
    """false: results stay whole, in their messages and in payloads."""
    offload_threshold_bytes: Count = 4096
    """Larger results are stored in a blob, and their message has a preview."""
    context_budget_tokens: Count | Auto = "auto"
    """Tokens of tool results in a payload above which the oldest are cleared; `auto`: a quarter of
    the context window, from 20000 to 60000.
    """
    max_message_bytes: PreviewSize = 51_200
    """Largest preview, its note included; less in a small context window."""
    max_line_length: PreviewSize = 2000
    """Characters of a line in a preview."""
    view: PreviewMode = PreviewMode.TRUNCATE
    """Preview: `truncate` has as much as fits, `reference` the size and an excerpt."""
    clear_at_least: Count | Auto = "auto"
    """Least tokens that a clearing frees; `auto`: three quarters of the budget."""
    exclude_tools: Texts = ()
    """Tools whose results are never cleared."""
    clear_repeated: Flag = True
    """true: a result is cleared, when an epoch begins, if a later one repeats its call."""


class MessagesPolicy(Group):
    """How user and assistant texts that exceed the context window are shortened."""

    offload_oversized: Flag = True
    """A text for which a payload would not fit is shown as its beginning, a note with its ref, and
    its end; false: such a build is refused.
    """


class CollectionPolicy(Group):
    """What a collection deletes besides uploads that no message refers to."""

    drop_compacted: Flag = False
    """true: also blobs whose messages are all compacted."""


class Policy(Group):
    """Settings for the context of a conversation."""

    strategy: StrategyName = StrategyName.SANDWICH
    """How the history is kept inside the context window; `GET /v1/strategies` lists them."""
    sandwich: SandwichPolicy = SandwichPolicy()
    sliding_window: SlidingWindowPolicy = SlidingWindowPolicy()
    tree_summary: TreeSummaryPolicy = TreeSummaryPolicy()
    compaction: CompactionPolicy = CompactionPolicy()
    budget: BudgetPolicy = BudgetPolicy()
    tool_output: ToolOutputPolicy = ToolOutputPolicy()
    messages: MessagesPolicy = MessagesPolicy()
    collection: CollectionPolicy = CollectionPolicy()
    tool_deferral_threshold: Share = 0.10
    """Share of the effective window that tool definitions may take before some are deferred."""
    dynamic_position: Literal["tail", "system", "before_window"] = "tail"
    """Where scratchpad, status and notes stand: `tail`, which keeps the cached prefix, `system` or
    `before_window`.
    """
    status_preamble: Literal["auto", "none"] = "none"
    """`auto`: a build without a status names the agent's other active conversations."""
    agent_tools: (
        Literal["auto", "none"] | Annotated[tuple[AgentToolName, ...], Field(max_length=100)]
    ) = "auto"
    """Tools of the service in a payload: `auto` adds them beside tools of the caller, and elsewhere
    those that its texts need; `none` adds none, a list adds the named ones. Only a list adds
    `pin_messages`.
    """
    summary_role: Literal["user", "system", "auto"] = "user"
    """Role of a summary; `auto` is `user`. Anthropic and Gemini take `user` for `system`, and
    `degraded` has `summary_role_user`.
    """
    preserve_user_messages: Flag = False
    """true: the newest user messages stay verbatim in compactions."""
    sends_betas: Flag = False
    """true: your calls send the `betas` of each build, so that changed tools of Claude may follow
    the cached prefix.
    """

    @property
    def due_ratio(self) -> float | None:
        """The share of the effective window at which a compaction is due, None for never."""
        match self.strategy:
            case StrategyName.FULL_HISTORY | StrategyName.SLIDING_WINDOW | StrategyName.PROVIDER:
                return None  # the last: the provider decides
            case _:
                return self.compaction.threshold_ratio


DEFAULT_POLICY: Mapping[str, Any] = Policy().model_dump(mode="json")
"""Every setting with its default, nested as in JSON."""


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` overridden by the settings of `patch`, without null settings."""
    merged = dict(base)
    for key, given in patch.items():
        is_group = isinstance(given, Mapping)
        value = merge(merged.get(key) or {}, given) or None if is_group else given
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def effective(*levels: Mapping[str, Any] | None, at: str = "") -> Policy:
    """Return the merged policy of these levels, each overriding those before it.

    Raises ValidationError for a wrong value, or a combination that can never work (rule 4); its
    pointers begin with `at`.
    """
    merged: dict[str, Any] = {}
    for level in levels:
        merged = merge(merged, level or {})
    try:
        policy = Policy.model_validate(merged)
    except PydanticError as error:
        errors = error.errors(include_url=False, include_input=False)
        found = schema_problems(in_body(errors), merged)
        problems = tuple(Problem(f"{at}{each.pointer}", each.detail) for each in found)
        raise ValidationError(problems[0].detail, problems=problems) from error
    context_window = policy.budget.context_window
    if isinstance(context_window, int) and policy.budget.max_output_tokens >= context_window:
        pointer = f"{at}/budget/max_output_tokens"
        raise ValidationError.at(pointer, "must be smaller than context_window")
    return policy


def leaves(kind: type[Group] = Policy, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each setting: `("strategy",)`, `("sandwich", "preserve_top")`."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Group):
            yield from leaves(field.annotation, (*path, name))
        else:
            yield (*path, name)


POLICY_VARIABLES = {variable("_".join(path)): path for path in leaves()}
"""The path of each setting by its variable."""


def policy_from_env(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that the environment sets, nested as in JSON.

    Raises SettingsError for text that cannot be parsed; `effective` checks the values.
    """
    policy: dict[str, Any] = {}
    for name, path in POLICY_VARIABLES.items():
        if text := environ.get(name, "").strip():
            value = _value(name, text, reduce(getitem, path, DEFAULT_POLICY))
            for key in reversed(path):
                value = {key: value}
            policy = merge(policy, value)
    return policy


def _value(name: str, text: str, default: object) -> Any:
    if isinstance(default, bool):
        try:
            return TypeAdapter(bool).validate_python(text)
        except PydanticError:
            raise SettingsError(f"{name} must be true or false.") from None
    if isinstance(default, list) and not text.startswith("["):
        return split(text)
    try:
        return json.loads(text)
    except ValueError:
        return text
