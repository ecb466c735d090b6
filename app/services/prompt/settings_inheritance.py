"""The caller's own settings of an agent or a conversation: checked, patched, shown (decision 22).

1. What is stored is the layer as the caller gave it, in JSON text; defaults stay out of it.
2. A layer is checked together with the layers below it, when it is set.
3. Its sections and tools are replaced as whole lists, each a new version; none is forgotten (G1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, assert_never

from app.domain.common import json_text
from app.domain.common.errors import Conflict, NotFound, Problem, ValidationError
from app.domain.common.policy import DEFAULTS, merge
from app.domain.conversations.agent import Agent
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.settings import Settings, Versioned
from app.domain.formats import parse_tool
from app.domain.prompt.resolved_settings import digest
from app.services.ports import Repositories


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """What a caller sets when creating: the policy's own leaves, sections and tools as given."""

    model: str | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    sections: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()

    def stored(self) -> Settings:
        """Return them as they are stored; raises ValidationError for names used twice."""
        return Settings(
            model=self.model,
            policy=json_text.dumps(merge({}, self.policy)),
            sections=sections_text(self.sections),
            tools=tools_text(self.tools),
        )


@dataclass(frozen=True, slots=True)
class Patch:
    """A change: only the keys in `given` are looked at; a None policy resets it."""

    given: frozenset[str]
    name: str = ""
    model: str | None = None
    policy: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rolling_window_seconds: int | None = None

    def applied(self, settings: Settings) -> Settings:
        """Return the settings with model and policy changed."""
        if "model" in self.given:
            settings = replace(settings, model=self.model)
        if "policy" in self.given:
            own = (
                {} if self.policy is None else merge(json_text.loads(settings.policy), self.policy)
            )
            settings = replace(settings, policy=json_text.dumps(without_empty(own)))
        return settings


_NO_LIST = "[]"
_Layer = TypeVar("_Layer", Agent, Conversation)


@dataclass(frozen=True, slots=True)
class Listed:
    """Sections or tools as JSON text, and which version of them that is (G1)."""

    body: str
    version: int

    @property
    def is_unkept(self) -> bool:
        """Whether it was given before versions were kept."""
        return self.version == 0 and self.body != _NO_LIST

    def replaced(self, kind: Versioned, body: str, expected: int | None) -> Listed:
        """Return what is newest once this body is given: itself, when that says nothing new.

        Raises Conflict with the version there is when another one was expected.
        """
        if expected not in (None, self.version):
            raise Conflict(
                f"The {kind} are at version {self.version}, not {expected}",
                {"version": self.version, "expected_version": expected},
            )
        return self if body == self.body else Listed(body, self.version + 1)


def listed(layer: Agent | Conversation, kind: Versioned) -> Listed:
    """Return the newest version of a layer's list."""
    match kind:
        case Versioned.SECTIONS:
            return Listed(layer.settings.sections, layer.versions.sections)
        case Versioned.TOOLS:
            return Listed(layer.settings.tools, layer.versions.tools)
        case _:
            assert_never(kind)


def with_list(layer: _Layer, kind: Versioned, new: Listed) -> _Layer:
    """Return the layer with this as its newest version of a list."""
    settings = replace(layer.settings, **{kind.value: new.body})
    return replace(
        layer, settings=settings, versions=replace(layer.versions, **{kind.value: new.version})
    )


def no_version(kind: Versioned, version: int) -> NotFound:
    """Return the error for a version that a list never had."""
    return NotFound(f"There is no version {version} of the {kind}", {"version": version})


def sections_text(sections: Sequence[Mapping[str, Any]]) -> str:
    """Return sections as stored; raises ValidationError when a name occurs twice (G1)."""
    _refuse_repeats([section["name"] for section in sections], "/sections")
    return json_text.dumps(list(sections))


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return tools as stored; raises ValidationError for what is no tool definition (21)."""
    names = [parse_tool(tool, f"/tools/{index}").name for index, tool in enumerate(tools)]
    _refuse_repeats(names, "/tools")
    return json_text.dumps(list(tools))


def shown_policy(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return every leaf's value, without asking whether the whole could work (GET never fails)."""
    shown = dict(DEFAULTS)
    for layer in layers:
        shown = merge(shown, layer)
    return shown


CheckModel = Callable[[str, str], None]
"""Raises ValidationError at a place for a model that may not summarise (E5)."""


def check_summariser(policy: Mapping[str, Any] | None, check: CheckModel) -> None:
    """Raise ValidationError where a given policy names a model that may not summarise.

    Only what is given is looked at: a model that was allowed once does not stand in the way of
    other changes.
    """
    given = (policy or {}).get("compaction")
    model = given.get("model") if isinstance(given, Mapping) else None
    if isinstance(model, str):
        check(model, "/policy/compaction/model")


def without_empty(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layer without objects that hold no leaf any more."""
    kept = {}
    for key, value in layer.items():
        left = without_empty(value) if isinstance(value, Mapping) else value
        if left != {}:
            kept[key] = left
    return kept


def in_policy(error: ValidationError) -> ValidationError:
    """Return a policy's error with its pointers as seen from the whole body."""
    places = (Problem(f"/policy{place.pointer}", place.detail) for place in error.problems)
    return replace(error, problems=tuple(places))


async def taken_by(
    records: Repositories, tenant_id: str, key: str, request: Any, resource_id: str
) -> str | None:
    """Take an idempotency key for a creation; return whose it is when it was taken before.

    Raises Conflict when that was with another body (decision 8). Call it first in the
    creation's transaction, so that a failed creation lets go of the key.
    """
    request_hash = digest(json_text.dumps(request))
    if await records.tenants.keep_creation(tenant_id, key, request_hash, resource_id):
        return None
    kept = await records.tenants.kept_creation(tenant_id, key)
    if kept is None or kept[0] != request_hash:
        raise Conflict("The Idempotency-Key was used with another body")
    return kept[1]


def _refuse_repeats(names: Sequence[str], pointer: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise ValidationError.at(f"{pointer}/{index}/name", f"The name {name!r} is used twice")
        seen.add(name)
