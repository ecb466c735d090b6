"""A provider of models: its wire format, and what it does otherwise than others.

`PROVIDERS` finds one by the name of its format. What a new one touches: CONTRIBUTING.md. It is a
subclass of a provider with a similar format, or of `BlockProvider`, `ItemProvider` or `Provider`.

1. `parse` reads wire messages as neutral ones. `adapt` returns a neutral message as the format can
   carry it, `for_payload` one as a payload has it, without reasoning that is not replayed. `render`
   writes such a message: as a message, as items, or as the blocks of a message.
2. A part with fields of its own keeps them in `block`, with the name of their `format`: it is an
   original, which is sent unchanged to that format alone.
3. In formats of blocks neighbours of one role are one message. A message of the user with k tool
   results is k tool messages and one message with the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from app.formats import media
from app.formats import tools as tools_module
from app.formats.json_fields import Fields, Raw, Wire
from app.formats.message import (
    LOG_FORMAT,
    File,
    FormatName,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    placeholder_for,
)
from app.formats.reasoning import accepted_families, is_compaction
from app.formats.tools import NO_IDS, Ids, ToolDefinition, Tools, hosted_definition, sendable_id

Original = Message | Text | Image | File | ToolCall
"""What may be an original (rule 2)."""


class AgentCall(NamedTuple):
    """A call of a tool as a provider's client has it; `at` is the JSON pointer of its fields.

    `arguments` are in the field `key`; an absent one is None. Only Gemini's calls may lack an `id`.
    `is_search` is true for the call of a provider's own tool search, which has no name.
    """

    id: str | None
    fields: Fields
    key: str
    is_search: bool = False


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """The texts of a system prompt: its static sections, and those that change.

    It is rendered as one text where a format has blocks and the breakpoints in them were wrong.
    """

    sections: tuple[str, ...]
    dynamic_texts: tuple[str, ...]
    as_blocks: bool = True

    @property
    def texts(self) -> list[str]:
        """The static text, where there is one, and the others."""
        return [*(["\n\n".join(self.sections)] if self.sections else []), *self.dynamic_texts]


class System(NamedTuple):
    """A rendered system prompt: items before the history, or a field of the request.

    `hashed` is its JSON for the prefix hash.
    """

    items: tuple[bytes, ...] = ()
    field_value: Any = None
    hashed: bytes = b""


class Compaction(NamedTuple):
    """Fields of a request, and the betas that it needs."""

    added: Raw = MappingProxyType({})
    betas: tuple[str, ...] = ()


class Provider(ABC):
    """One provider's format; an instance has no state."""

    name: FormatName
    part_types: ClassVar[tuple[str, ...]] = ()
    """The types of parts that only some formats have. Any other is accepted, and replayed here."""
    blocks_key: ClassVar[str] = ""
    """The field of a message that holds the pieces which `render` returns."""
    id_keys: ClassVar[tuple[str, str]]
    """The fields of a call and of a result that hold the id of the call."""
    result_key: ClassVar[str] = "content"
    """The field of a result that holds its content."""
    assembler: ClassVar[str]
    """The name of what assembles its payloads, in `app.payload`."""
    family: ClassVar[str] = ""
    """The family whose reasoning a model of an unknown name takes."""
    items_key: ClassVar[str] = "messages"
    """The field of a request that holds the items of a payload."""
    max_output_key: ClassVar[str] = ""
    """The field of a request that bounds the answer."""
    breakpoint: ClassVar[tuple[str, Raw] | None] = None
    """The field that makes a block a cache breakpoint, and its value."""
    caches_by_itself: ClassVar[bool] = True
    """Whether the provider caches prefixes without any breakpoint."""
    system_breakpoints: ClassVar[int] = 2
    """Breakpoints in the system prompt: after static text, and after text that seldom changes."""
    max_tools: ClassVar[int | None] = None
    """How many tools a request may define."""
    defers_tools: ClassVar[bool] = False
    """Whether models of the provider may search its tools."""
    needs_tools: ClassVar[bool] = False
    """Whether a payload with calls has to define a tool."""
    compacting_families: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """The families whose provider compacts; so, it is assumed, does that of an unknown family."""
    keeps_user_messages: ClassVar[bool] = False
    """Whether a compaction of its endpoint is answered with the user's messages beside it."""
    takes_system: ClassVar[bool] = True
    """Whether messages may have the system role, whatever the model."""
    sends_objects: ClassVar[bool] = False
    """Whether the arguments of calls are sent as objects, otherwise as text."""
    results_are_objects: ClassVar[bool] = False
    """Whether results are sent as objects, otherwise as texts and parts."""
    apart_types: ClassVar[tuple[type[Part], ...]] = ()
    """The types of parts that are sent apart from a result."""
    sends_apart_message: ClassVar[bool] = False
    """Whether what is sent apart from a result has a message of its own."""
    makes_ids: ClassVar[bool] = False
    """Whether the provider makes the ids of messages: one that the log cannot take is not used."""
    derives_ids: ClassVar[bool] = False
    """Whether a call without an id has one by its position."""
    names_family: ClassVar[bool] = False
    """Whether reasoning names the family that made it, otherwise it is that of the provider."""
    ends_with_reasoning: ClassVar[bool] = False
    """Whether a message may end with reasoning after something else."""
    joins_answers: ClassVar[bool] = True
    """Whether messages of one answer are joined, because results have to follow their calls."""
    image_types: ClassVar[tuple[str, ...]] = ()
    """The media types of images that it takes."""
    called_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a rendered call without which its result cannot be rendered."""
    linked_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a call that are sent in its result as well."""
    not_counted: ClassVar[tuple[str, ...]] = ()
    """Fields of an original that cost no tokens beside its text: types, ids, states."""

    @property
    def stores_items(self) -> bool:
        """Whether its payload items are stored with the messages of the log."""
        return self.name is LOG_FORMAT

    def accepted_families(self, model: str) -> tuple[str, ...]:
        """Return the families whose reasoning a model accepts."""
        return accepted_families(model, self.family)

    def is_same_family(self, model: str, other: str) -> bool:
        """Whether two models read each other's encrypted items; unknown names have to be equal."""
        family = self.accepted_families(model)[:1]
        return model == other or (family != () and family == self.accepted_families(other)[:1])

    def compacts(self, model: str) -> bool:
        """Whether the provider of a model compacts what it is sent in this format."""
        return self.accepted_families(model)[:1] in self.compacting_families

    # --- reading ---------------------------------------------------------------------------------

    @abstractmethod
    def parse(self, raw: Raw, pointer: str) -> tuple[Message, ...]:
        """Read one wire message as neutral ones; unknown fields are accepted.

        Raises `ValidationError` at the field below `pointer` that is wrong.
        """

    def split(self, raw: Raw) -> tuple[Wire, ...]:
        """Return the wire message to store for each of those neutral messages."""
        return (dict(raw),)

    @abstractmethod
    def results(self, raw: Raw) -> list[tuple[str, Any]]:
        """List the objects of a wire message that are tool results, each with its JSON pointer.

        Some may be malformed; in a message that parses, each is one tool message.
        """

    @abstractmethod
    def calls(self, raw: Raw) -> list[Wire]:
        """List the objects of a wire message that parses that are calls of the client."""

    def group_items(self, raws: Sequence[Any]) -> list[tuple[int, Any]]:
        """Join the items of a batch that are one message, each with the index of its first item."""
        return list(enumerate(raws))

    def own_fields(self, raw: Raw) -> Raw:
        """Return the object whose `id` and `timestamp` are those of a wire message."""
        return raw

    def enveloped(self, raw: Wire) -> Wire:
        """Return a stored message whose `id` and `timestamp` can be replaced by those of a copy."""
        return raw

    def unbound(self, message: Message) -> Message:
        """Return a message as its provider accepts it once compactions in it are left out."""
        return message

    def _opaque(self, block: Fields, *excluded: str) -> Opaque:
        return Opaque(block.json(*excluded), self.name)

    # --- calls -----------------------------------------------------------------------------------

    def call_id(self, call_id: str) -> str:
        """Return an id that depends on the id of a call alone, and that the provider accepts."""
        return sendable_id(call_id)

    def call_id_fields(self, raw: Wire) -> list[tuple[Wire, str]]:
        """List objects and fields that may hold the id of a call, or of one that is answered."""
        of_call, of_result = self.id_keys
        calls = [(call, of_call) for call in self.calls(raw)]
        return calls + [(result, of_result) for _, result in self.results(raw)]

    def named_calls(self, raw: Raw) -> tuple[str, ...]:
        """Return the ids of the calls in a wire message, without those that have none in it."""
        return tuple(call[self.id_keys[0]] for call in self.calls(raw) if call.get(self.id_keys[0]))

    @abstractmethod
    def read_call(self, call: Fields) -> AgentCall:
        """Read a call as a client has it; unknown fields are ignored.

        Raises ValidationError below the pointer of the call for a malformed field.
        """

    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> Wire:
        """Return the wire message that answers a call with a text."""
        return self.wire(Message(Role.TOOL, (Text(text),), call_id, name, is_error))

    def emptied(self, message: Message, text: str) -> Wire:
        """Return a wire message with role and calls of this one, and a text as its content."""
        calls = tuple(
            replace(call, arguments="" if call.custom else "{}", block=self._identity(call))
            for call in message.calls
        )
        return self.wire(Message(message.role, (Text(text), *calls), message.tool_call_id))

    def _identity(self, call: ToolCall) -> Raw | None:
        """Return what belongs to the pair of call and result beside id and name."""
        return None

    def text_key(self, content: Any) -> str | None:
        """Return the field that holds the only text of an object that is a result's content."""
        return None

    def is_object(self, content: Any) -> bool:
        """Whether the content of a result is an object that is no text."""
        return self.results_are_objects and bool(content) and self.text_key(content) is None

    def result_content(self, text: str) -> Any:
        """Return the content of a result that is this text."""
        return text

    # --- adapting --------------------------------------------------------------------------------

    def adapt(self, message: Message, ids: Ids = NO_IDS) -> Message:
        """Return a clean message as the format can carry it, the same object where it can as is.

        `ids` maps call ids to the ids to send; any other becomes a `sendable_id`. A label replaces
        media of the assistant, and a part that only another format has [neutral.opaque-family].
        Reasoning stays, since it is counted apart. A message without parts gets a placeholder
        [neutral.no-empty-content]. Where the name of a participant is not sent, the text begins
        with it.
        """
        if message.role is Role.SYSTEM and not self.takes_system:
            labelled = (Text(media.SYSTEM_LABEL), *message.parts)
            message = replace(message, role=Role.USER, parts=labelled)
        parts: list[Part] = []
        for part in message.parts:
            # Most parts are texts, which every format has.
            adapted = part if type(part) is Text else self._adapt_part(part, message, ids)
            if adapted is not None:
                parts.append(adapted)
        parts = self._arranged(parts, message)
        if not (parts or self.beside(message)):
            parts = [placeholder_for(message.role)]
        name, call_id = self._sent_name(message), message.tool_call_id
        if name is None and message.role is not Role.TOOL and (message.name or "").strip():
            _put_speaker(parts, message.name or "")
        sent = (ids.get(call_id) or sendable_id(call_id)) if call_id is not None else None
        if sent == call_id and name == message.name:
            return message.with_parts(parts)
        return replace(message, parts=tuple(parts), tool_call_id=sent, name=name)

    def _adapt_part(self, part: Part, message: Message, ids: Ids) -> Part | None:
        is_assistant = message.role is Role.ASSISTANT
        match part:
            case ToolCall():
                return self._adapt_call(part, ids) if is_assistant else None
            case Image() | File() if is_assistant:
                return media.label_for(part)
            case Image():
                return self._adapt_image(part)
            case File():
                return self._adapt_file(part)
            case Opaque() if part.format is not self.name:
                return media.label_for(part)
            case _:
                return part

    def _arranged(self, parts: list[Part], message: Message) -> list[Part]:
        """Return adapted parts in an order and a number that the format has."""
        return parts

    def _sent_name(self, message: Message) -> str | None:
        """Return the name of a tool, and of a participant where those have names."""
        return message.name if message.role is Role.TOOL else None

    def _adapt_call(self, call: ToolCall, ids: Ids) -> ToolCall:
        sent, name = self._sent_id(call, ids), self._function_name(call.name)
        arguments, custom = call.arguments, call.custom and not self.sends_objects
        if self.sends_objects:
            arguments = tools_module.object_arguments(arguments)
        elif not call.custom and not tools_module.is_json(arguments):
            arguments = tools_module.wrapped_arguments(arguments)
        same = (sent, name, custom) == (call.id, call.name, call.custom)
        if same and arguments is call.arguments:
            return call
        return replace(call, id=sent, name=name, arguments=arguments, custom=custom)

    def _sent_id(self, call: ToolCall, ids: Ids) -> str:
        return ids.get(call.id) or sendable_id(call.id)

    def _function_name(self, name: str) -> str:
        return tools_module.tool_name(name)

    def _adapt_image(self, image: Image) -> Image | Text:
        declared = self._image_type(image)
        media_type = "image/jpeg" if declared == "image/jpg" else declared
        is_sendable = image.data is not None or media.is_web_url(image.url)
        if media_type not in self.image_types or not is_sendable:
            return media.label_for(image)
        return image if media_type == image.media_type else replace(image, media_type=media_type)

    def _image_type(self, image: Image) -> str | None:
        return media.media_type_of(image)

    @abstractmethod
    def _adapt_file(self, file: File) -> File | Image | Text: ...

    # --- rendering -------------------------------------------------------------------------------

    def for_payload(
        self,
        message: Message,
        ids: Ids = NO_IDS,
        *,
        replays: bool = False,
        accepts: Sequence[str] = (),
    ) -> Message:
        """Adapt a clean message, and leave out the parts that a payload does not have.

        With `replays`, reasoning of its own provider stays [anthropic.latest-thinking], if it names
        a family that the model `accepts`. Reasoning is not the last thing that a model said.
        """
        message = self.adapt(message, ids)
        parts = self.sent_parts(message, accepts, replays=replays)
        while parts and not self.ends_with_reasoning and isinstance(parts[-1], Reasoning):
            if is_compaction(parts[-1]):
                break
            parts.pop()
        return message.with_parts(parts)

    def sent_parts(self, message: Message, accepts: Sequence[str], *, replays: bool) -> list[Part]:
        """Leave out reasoning that is not replayed, and what only goes with it."""
        return [
            part
            for part in message.parts
            if not isinstance(part, Reasoning)
            or (replays and part.format is self.name and part.block is not None)
        ]

    @abstractmethod
    def render(self, message: Message, call: Raw | None = None) -> list[Wire]:
        """Render a message `for_payload`; `call` is the rendered call that a result answers.

        The first piece of a result is the result; those after it come after all results.
        """

    def _wire_part(self, part: Part) -> Wire:
        """Render a part; the block of an original is sent as it came."""
        match part:
            case Text():
                is_own = part.block is not None and part.format is self.name
                return dict(part.block or {}) if is_own else self._wire_text(part.text)
            case Image() | File():
                return self._wire_media(part)
            case ToolCall():
                return self._wire_call(part)
            case Reasoning() | Opaque():
                return dict(part.block or {})

    @abstractmethod
    def _wire_text(self, text: str) -> Wire: ...

    @abstractmethod
    def _wire_media(self, part: Image | File) -> Wire: ...

    @abstractmethod
    def _wire_call(self, call: ToolCall) -> Wire: ...

    def wire(self, message: Message) -> Wire:
        """Return a message as one wire message."""
        return self.render(message)[0]

    def rendered_calls(self, pieces: Sequence[Wire]) -> list[Raw]:
        """List the `called_fields` of the calls among rendered pieces, in their order."""
        whole = {"role": "assistant", self.blocks_key: pieces}
        calls = self.calls(whole) if self.called_fields else ()
        return [{key: call[key] for key in self.called_fields if key in call} for call in calls]

    def is_reshaped(self, call: Raw | None) -> bool:
        """Whether the result of such a call has a type without a place for some of its parts."""
        return False

    def without_foreign(self, message: Message, accepts: Sequence[str]) -> Message:
        """Return a message with labels for items that no provider of these families has.

        The same object is returned where there are none.
        """
        return message

    def without_repeated_ids(self, message: Message, seen: set[str]) -> Message:
        """Return a message without the ids of earlier items, which `seen` has."""
        return message

    def linked(self, message: Message, call: Raw | None) -> Message:
        """Return an adapted result with the `linked_fields` of its call."""
        fields = {key: call[key] for key in self.linked_fields if call and call.get(key)}
        block = {**fields, **self.beside(message)}
        return replace(message, block=block, format=self.name) if fields else message

    def beside(self, original: Message | Image | File | ToolCall) -> Wire:
        """Return the fields that are sent beside those a part is rendered from."""
        is_own = original.block is not None and original.format is self.name
        return dict(original.block or {}) if is_own else {}

    # --- tools -----------------------------------------------------------------------------------

    def tools_to_wire(self, tools: Tools) -> list[Wire]:
        """Render tool definitions, in their order."""
        return [
            hosted_definition(tool.hosted) if tool.hosted is not None else self._function(tool)
            for tool in tools
        ]

    @abstractmethod
    def _function(self, tool: ToolDefinition) -> Wire: ...

    def deferred_to_wire(self, tools: Tools, deferred: Collection[str], search: str) -> list[Wire]:
        """Render tools of which some are deferred; `search` is the tool that finds them."""
        return self.tools_to_wire([tool for tool in tools if tool.name not in deferred])

    def tool_references(self, tools: Tools) -> list[Wire]:
        """Return references to deferred tools as the content of a result, none where it is text."""
        return []

    def search_output(self, call_id: str | None, tools: Tools, status: str) -> Wire:
        """Return the result of a call of the provider's own tool search."""
        raise NotImplementedError(f"{self.name} has no tool search of its own")

    # --- requests --------------------------------------------------------------------------------

    @abstractmethod
    def system(self, prompt: SystemPrompt, marked: Collection[int]) -> System:
        """Render the system prompt, with breakpoints after the `marked` sections."""

    @abstractmethod
    def body(self, items: Any, max_output: int, system: Any, tools: Raw, cache_key: Raw) -> Wire:
        """Return a request without its model; `tools` and `cache_key` are fields or nothing."""

    def change(self, model: str, text: str, tools: tools_module.ToolChange) -> list[Wire] | None:
        """Render a text and other tools as items that may come after the history.

        None for a model or a change that the provider has no such items for.
        """
        return None

    def betas_of(self, items: Sequence[Raw]) -> tuple[str, ...]:
        """Return the betas that such items need."""
        return ()

    def marked(self, block: Raw, *, is_marked: bool = True) -> Wire:
        """Return a block with a cache breakpoint."""
        mark = dict([self.breakpoint]) if self.breakpoint is not None and is_marked else {}
        return {**block, **mark}

    def compaction(self, threshold: int, requested: bool | None, *, asks: bool) -> Compaction:
        """Return what a payload needs for the provider's own compaction.

        `requested` is that of the item it begins with, None without one. It is compacted if it
        `asks` for that.
        """
        return Compaction()

    # --- tokens ----------------------------------------------------------------------------------

    def extra_fields(self, part: Original) -> Wire:
        """Return the fields that are sent beside a part's text, and so are counted.

        Citations, annotations and log probabilities are such fields. Types, ids, states and empty
        fields are not counted. Signatures are counted as reasoning.
        """
        is_own = part.block is not None and part.format is self.name
        return self._extra_fields(part, part.block or {}) if is_own else {}

    def _extra_fields(self, part: Original, block: Raw) -> Wire:
        return without(block, *self.not_counted)

    def signature_of(self, part: Text | ToolCall) -> Raw:
        """Return the fields with the signature of an original of this provider, empty without."""
        return {}

    def result_texts(self, message: Message) -> tuple[str, ...]:
        """Return what is counted of an adapted result that is sent as an object."""
        return ()

    def apart(self, message: Message) -> tuple[Part, ...]:
        """List the parts of an adapted result, such as images, that are sent after it."""
        if message.role is not Role.TOOL:
            return ()
        return tuple(part for part in message.parts if isinstance(part, self.apart_types))

    def apart_texts(self, message: Message) -> tuple[str, ...]:
        """Return the label before these parts, and the text of a result without any."""
        if not self.apart(message):
            return ()
        has_text = self.results_are_objects or any(isinstance(p, Text) for p in message.parts)
        return (media.media_label(message), *(() if has_text else (media.MEDIA_FOLLOWS,)))


class BlockProvider(Provider):
    """A format of user and assistant messages that are blocks."""

    takes_system = False
    sends_objects = True
    assistant: ClassVar[str] = "assistant"
    """The role of the model."""

    @abstractmethod
    def is_result(self, block: Raw) -> bool:
        """Whether a block is a tool result."""

    def split(self, raw: Raw) -> tuple[Wire, ...]:
        """Return the wire message to store for each neutral message that `parse` returns.

        Each block is in one of them. The first keeps the unknown fields of the message.
        """
        content = raw.get(self.blocks_key)
        blocks = content if isinstance(content, list) else []
        groups = [[block] for block in blocks if self.is_result(block)]
        rest = [block for block in blocks if not self.is_result(block)]
        if not groups or (len(groups) == 1 and not rest):
            return (dict(raw),)
        groups += [rest] if rest else []
        others = ({"role": "user", self.blocks_key: group} for group in groups[1:])
        return (dict(raw) | {self.blocks_key: groups[0]}, *others)

    def _parse_user(self, blocks: Sequence[Fields]) -> tuple[Message, ...]:
        """Read results, then the rest, as they are sent [anthropic.results-first]."""
        messages = self._parse_results([block for block in blocks if self.is_result(block.raw)])
        rest = [block for block in blocks if not self.is_result(block.raw)]
        if rest or not messages:
            parts = tuple(self._parse_part(block, Role.USER) for block in rest)
            messages.append(Message(Role.USER, parts))
        return tuple(messages)

    @abstractmethod
    def _parse_results(self, blocks: Sequence[Fields]) -> list[Message]: ...

    @abstractmethod
    def _parse_part(self, block: Fields, role: Role) -> Part: ...

    def role_of(self, role: Role) -> str:
        """Return the role of a message in a payload."""
        return self.assistant if role is Role.ASSISTANT else "user"

    def wire(self, message: Message) -> Wire:
        """Return a message as one wire message."""
        return {"role": self.role_of(message.role), self.blocks_key: self.render(message)}


def _put_speaker(parts: list[Part], name: str) -> None:
    """Put a participant's name before the first text, or before all that is visible."""
    for index, part in enumerate(parts):
        if isinstance(part, Text):
            parts[index] = Text(f"{name}: {part.text}")
            return
    parts.insert(sum(isinstance(part, Reasoning) for part in parts), Text(f"{name}:"))


def without(block: Raw, *names: str) -> Wire:
    """Return the fields of a block that are not empty, without those of these names."""
    return {key: value for key, value in block.items() if value and key not in names}
