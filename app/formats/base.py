"""A provider of models: its wire format, and what it does otherwise than others.

`PROVIDERS` in the registry finds one by the name of its format. To add a provider, add a subclass
there: of a provider whose format it speaks, or of one of the classes here and in `openai`.

1. `parse` reads wire messages as neutral ones. `adapt` returns a neutral message as the format can
   carry it, and `render`, whose result differs by format, writes it.
2. A part has the name of the provider whose original it is. Reasoning in fields of Chat messages
   has the name of that format in its dialects as well, because its fields name who made it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from app.formats import adapting, base64_media, inline_media, labels, tool_calls
from app.formats.hosted_tools import hosted_definition
from app.formats.json_fields import Fields
from app.formats.message import (
    LOG_FORMAT,
    File,
    FormatName,
    Image,
    Message,
    Opaque,
    Part,
    Role,
    Text,
    ToolCall,
)
from app.formats.tool_calls import NO_IDS
from app.formats.tools import ToolDefinition

Original = Message | Text | Image | File | ToolCall
"""What may have fields that are sent to the format it came in alone."""


class AgentCall(NamedTuple):
    """A call of a tool as a provider's client has it; `at` is the JSON pointer of its fields.

    `arguments` are in the field `key`; an absent one is None. Only Gemini's calls may lack an `id`.
    `is_search` is true for the call of a provider's own tool search, which has no name.
    """

    id: str | None
    fields: Fields
    key: str
    is_search: bool = False


class Provider(ABC):
    """One provider's format; an instance has no state."""

    name: FormatName
    result_key: ClassVar[str] = "content"
    """The field of a result that holds its content."""
    family: ClassVar[str] = ""
    """The family whose reasoning a model of an unknown name takes."""
    takes_system: ClassVar[bool] = True
    """Whether messages may have the system role, whatever the model."""
    sends_objects: ClassVar[bool] = False
    """Whether the arguments of calls are sent as objects, otherwise as text."""
    results_are_objects: ClassVar[bool] = False
    """Whether results are sent as objects, otherwise as texts and parts."""
    sends_apart_message: ClassVar[bool] = False
    """Whether what is sent apart from a result has a message of its own."""
    makes_ids: ClassVar[bool] = False
    """Whether the provider makes the ids of messages: one that is too long is no id of ours."""
    names_family: ClassVar[bool] = False
    """Whether reasoning names the family that made it, otherwise it is that of the provider."""

    @property
    def is_stored(self) -> bool:
        """Whether its payload items are stored with the messages of the log."""
        return self.name is LOG_FORMAT

    # --- reading ---------------------------------------------------------------------------------

    @abstractmethod
    def parse(self, raw: Mapping[str, Any], pointer: str) -> tuple[Message, ...]:
        """Read one wire message as neutral ones; unknown fields are accepted.

        Raises `ValidationError` at the field below `pointer` that is wrong.
        """

    def split(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Return the wire message to store for each of those neutral messages."""
        return (dict(raw),)

    @abstractmethod
    def results(self, raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
        """List the objects of a wire message that are tool results, each with its JSON pointer.

        Some may be malformed; in a message that parses, each is one tool message.
        """

    def group_items(self, raws: Sequence[Any]) -> list[tuple[int, Any]]:
        """Join the items of a batch that are one message, each with the index of its first item."""
        return list(enumerate(raws))

    def own_fields(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the object whose `id` and `timestamp` are those of a wire message."""
        return raw

    def beside(self, original: Message | Image | File | ToolCall) -> dict[str, Any]:
        """Return the fields that are sent beside those a part is rendered from."""
        is_own = original.block is not None and original.format is self.name
        return dict(original.block or {}) if is_own else {}

    def enveloped(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return a stored message whose `id` and `timestamp` can be replaced by those of a copy."""
        return raw

    # --- calls -----------------------------------------------------------------------------------

    @abstractmethod
    def call_id_fields(self, raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """List objects and fields that may hold the id of a call, or of one that is answered."""

    def named_calls(self, raw: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the ids of the calls in a wire message, without those that have none in it."""
        (*_, last) = self.parse(raw, "")
        return tuple(call.id for call in last.calls)

    @abstractmethod
    def read_call(self, call: Fields) -> AgentCall:
        """Read a call as a client has it; unknown fields are ignored.

        Raises ValidationError below the pointer of the call for a malformed field.
        """

    @abstractmethod
    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> dict[str, Any]:
        """Return the wire message that answers a call with a text.

        Where there is no error flag, the text of an error begins with "Error:".
        """

    @abstractmethod
    def emptied(self, message: Message, text: str) -> dict[str, Any]:
        """Return a wire message with role and calls of this one, and a text as its content."""

    def text_key(self, content: Any) -> str | None:
        """Return the field that holds the only text of an object that is a result's content."""
        return None

    def result_content(self, text: str) -> Any:
        """Return the content of a result that is this text."""
        return text

    # --- adapting --------------------------------------------------------------------------------

    def adapt(self, message: Message, ids: Mapping[str, str] = NO_IDS) -> Message:
        """Return a clean message as the format can carry it, the same object where it can as is.

        `ids` maps call ids to the ids to send; any other becomes `tool_calls.sendable_id`. A label
        replaces media of the assistant, and a part that only another format has
        [neutral.opaque-family]. Reasoning stays, since it is counted apart.
        """
        if not self.takes_system:
            message = adapting.without_system(message)
        adapted = (self._adapt_part(part, message, ids) for part in message.parts)
        parts = self._arranged([part for part in adapted if part is not None], message)
        return adapting.adapted_message(
            message, parts, ids, self._sent_name(message), has_fields=bool(self.beside(message))
        )

    def _adapt_part(self, part: Part, message: Message, ids: Mapping[str, str]) -> Part | None:
        is_assistant = message.role is Role.ASSISTANT
        match part:
            case ToolCall():
                return self._adapt_call(part, ids) if is_assistant else None
            case Image():
                return labels.label_for(part) if is_assistant else self._adapt_image(part)
            case File():
                return labels.label_for(part) if is_assistant else self._adapt_file(part)
            case Opaque() if part.format is not self.name:
                return labels.label_for(part)
            case _:
                return part

    def _arranged(self, parts: list[Part], message: Message) -> list[Part]:
        """Return adapted parts in an order and a number that the format has."""
        return parts

    def _sent_name(self, message: Message) -> str | None:
        """Return the name of a tool, and of a participant where those have names."""
        return message.name if message.role is Role.TOOL else None

    def _adapt_call(self, call: ToolCall, ids: Mapping[str, str]) -> ToolCall:
        sent, name = self._sent_id(call, ids), self._function_name(call.name)
        arguments, custom = call.arguments, call.custom and not self.sends_objects
        if self.sends_objects:
            arguments = tool_calls.object_arguments(arguments)
        elif not call.custom and not tool_calls.is_json(arguments):
            arguments = tool_calls.wrapped_arguments(arguments)
        same = (sent, name, custom) == (call.id, call.name, call.custom)
        if same and arguments is call.arguments:
            return call
        return replace(call, id=sent, name=name, arguments=arguments, custom=custom)

    def _sent_id(self, call: ToolCall, ids: Mapping[str, str]) -> str:
        return tool_calls.sent_id(call.id, ids)

    def _function_name(self, name: str) -> str:
        return tool_calls.tool_name(name)

    @abstractmethod
    def _adapt_image(self, image: Image) -> Image | Text: ...

    @abstractmethod
    def _adapt_file(self, file: File) -> File | Image | Text: ...

    # --- tools -----------------------------------------------------------------------------------

    def tools_to_wire(self, tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
        """Render tool definitions, in their order."""
        return [
            hosted_definition(tool.hosted) if tool.hosted is not None else self._function(tool)
            for tool in tools
        ]

    @abstractmethod
    def _function(self, tool: ToolDefinition) -> dict[str, Any]: ...

    # --- tokens ----------------------------------------------------------------------------------

    @abstractmethod
    def extra_fields(self, part: Original) -> dict[str, Any]:
        """Return the fields that are sent beside a part's text, and so are counted.

        Citations, annotations and log probabilities are such fields. Types, ids, states and empty
        fields are not counted. Signatures are counted as reasoning.
        """

    def signature_of(self, part: Text | ToolCall) -> Mapping[str, Any]:
        """Return the fields with the signature of an original of this provider, empty without."""
        return {}

    def result_texts(self, message: Message) -> tuple[str, ...]:
        """Return what is counted of an adapted result that is sent as an object."""
        return ()

    def apart(self, message: Message) -> tuple[Part, ...]:
        """List the parts of an adapted result that are sent apart from it."""
        return ()

    def apart_texts(self, message: Message) -> tuple[str, ...]:
        """Return the texts that are sent because parts of an adapted result are sent apart."""
        return ()


def without(block: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the fields that count of a block: those with other names that are not empty."""
    return {key: value for key, value in block.items() if value and key not in names}


class BlockProvider(Provider):
    """A format of user and assistant messages that are blocks.

    A wire message of the user with k tool results is k tool messages and one message with the rest.
    """

    takes_system = False
    sends_objects = True
    blocks_key: ClassVar[str]
    """The field of a message that holds its blocks."""
    image_types: ClassVar[tuple[str, ...]]

    @abstractmethod
    def is_result(self, block: Mapping[str, Any]) -> bool:
        """Whether a block is a tool result."""

    def split(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
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

    def _adapt_image(self, image: Image) -> Image | Text:
        declared = self._image_type(image)
        media_type = "image/jpeg" if declared == "image/jpg" else declared
        is_sendable = image.data is not None or base64_media.is_web_url(image.url)
        if media_type not in self.image_types or not is_sendable:
            return labels.label_for(image)
        return image if media_type == image.media_type else replace(image, media_type=media_type)

    def _image_type(self, image: Image) -> str | None:
        return inline_media.media_type_of(image)
