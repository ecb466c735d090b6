"""What several formats share: those of blocks, and OpenAI's two.

In formats of blocks neighbours of one role are one message. A message of the user with k tool
results is k tool messages and one message with the rest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from app.common import json_text
from app.common.errors import ValidationError
from app.formats import json_fields, labels, media
from app.formats.base import Provider, RequestFields, System
from app.formats.json_fields import Fields
from app.formats.message import OPENAI_FORMATS, File, Image, Message, Opaque, Part, Role, Text

MAX_TOOLS: Final = 128
"""The most tools in a request of OpenAI."""


class BlockProvider(Provider):
    """A format of user and assistant messages that are blocks."""

    takes_system = False
    sends_objects = True
    blocks_key: ClassVar[str]
    """The field of a message that holds its blocks."""
    assistant: ClassVar[str] = "assistant"
    """The role of the model."""
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

    def _parse_results(self, blocks: Sequence[Fields]) -> list[Message]:
        return list(map(self._parse_result, blocks))

    @abstractmethod
    def _parse_result(self, result: Fields) -> Message: ...

    @abstractmethod
    def _parse_part(self, block: Fields, role: Role) -> Part: ...

    def _adapt_image(self, image: Image) -> Image | Text:
        declared = self._image_type(image)
        media_type = "image/jpeg" if declared == "image/jpg" else declared
        is_sendable = image.data is not None or media.is_web_url(image.url)
        if media_type not in self.image_types or not is_sendable:
            return labels.label_for(image)
        return image if media_type == image.media_type else replace(image, media_type=media_type)

    def _image_type(self, image: Image) -> str | None:
        return media.media_type_of(image)

    def role_of(self, role: Role) -> str:
        """Return the role of a message in a payload."""
        return self.assistant if role is Role.ASSISTANT else "user"

    def wire(self, message: Message) -> dict[str, Any]:
        """Return a whole wire message."""
        return {"role": self.role_of(message.role), self.blocks_key: self.render(message)}


class OpenAIProvider(Provider):
    """A format whose messages are items, with text as a string or as parts."""

    breakpoint = ("prompt_cache_breakpoint", {"mode": "explicit"})
    max_tools = MAX_TOOLS
    details: ClassVar[tuple[str, ...]]
    """The values of an image's `detail`."""
    has_file_urls: ClassVar[bool] = False

    def _parse_parts(
        self, message: Fields, key: str, parse_part: Callable[[Fields], Part]
    ) -> tuple[Part, ...]:
        """Read a content: a string or a list of parts."""
        match message.get(key):
            case str(text):
                return (Text(text),)
            case list():
                return tuple(map(parse_part, message.objects(key)))
            case value:
                detail = f"must be a string or a list of parts, not {json_fields.json_type(value)}"
                raise message.error(key, detail)

    def _parse_file(self, file: Fields) -> File:
        name = file.optional_text("filename")
        if file_data := file.optional_text("file_data"):
            if media.is_web_url(file_data):
                return File(url=file_data.strip(), name=name, format=self.name)
            media_type, data = media.split_data_url(file_data) or (None, file_data)
            return File(media_type=media_type, data=data, name=name)
        if self.has_file_urls and (url := file.optional_text("file_url")):
            return File(url=url, name=name)
        if file_id := file.optional_text("file_id"):
            return File(file_id=file_id, name=name, format=self.name)
        fields = "file_data, file_url or file_id" if self.has_file_urls else "file_data or file_id"
        raise ValidationError.at(file.at, f"must have {fields}")

    def _parse_audio(self, part: Fields) -> Opaque | Text:
        """Read an `input_audio` part; a label stands for data that nobody can read."""
        opaque = self._opaque(part, *json_fields.CACHE_MARKS)
        audio = json_fields.object_in(opaque.block, "input_audio")
        if not (data := json_fields.text_in(audio, "data")):
            return opaque
        if (strict := media.strict_base64(data)) is None:
            return Text("[audio: unreadable data]", stands_for=("audio",))
        return replace(opaque, block={**opaque.block, "input_audio": {**audio, "data": strict}})

    def _adapt_image(self, image: Image) -> Image | Text:
        """Return an image with a media type and a detail of the format, or the label of one."""
        detail = image.detail if image.detail in self.details else None
        if image.data is None and not image.url:
            return labels.label_for(image)
        media_type = image.media_type
        if image.data is not None:
            media_type = media.media_type_of(image) or "image/png"
        if (media_type, detail) == (image.media_type, image.detail):
            return image
        return replace(image, media_type=media_type, detail=detail)

    def _adapt_file(self, file: File) -> File | Text:
        """Return a document with a name and a media type, as text, or its label."""
        if file.data is not None:
            media_type = media.media_type_of(file) or "application/octet-stream"
            if media_type.startswith(("audio/", "video/")):
                return labels.label_for(file)
            if file.name and media_type == file.media_type:
                return file
            return replace(file, name=file.name or "document", media_type=media_type)
        return labels.document_text(file) or self._adapt_file_source(file)

    @abstractmethod
    def _adapt_file_source(self, file: File) -> File | Text:
        """Return a file by its id or URL as the format takes it, or its label."""

    @staticmethod
    def is_uploaded(file: File) -> bool:
        """Whether a file has an id of OpenAI's, which is valid in both formats."""
        return file.file_id is not None and file.format in OPENAI_FORMATS

    def result(
        self, call_id: str | None, name: str | None, text: str, *, is_error: bool = False
    ) -> dict[str, Any]:
        """Return the wire message that answers a call; there is no flag for errors."""
        return super().result(call_id, name, f"Error: {text}" if is_error else text)

    def body(self, fields: RequestFields) -> dict[str, Any]:
        """Return items, limit and tools."""
        limit = {self.max_output_key: fields.max_output}
        return {self.items_key: fields.items, **limit, **fields.tools, **fields.cache_key}


def system_messages(messages: Iterable[dict[str, Any]]) -> System:
    """Return a system prompt that consists of items."""
    items = tuple(map(json_text.dump_payload, messages))
    return System(items, None, b",".join(items))
