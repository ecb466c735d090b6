"""What formats share in which neighbours of one role are one message, made of blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from app.formats import base64_media, inline_media, labels
from app.formats.base import Provider
from app.formats.json_fields import Fields
from app.formats.message import Image, Message, Part, Role, Text


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

    def _parse_results(self, blocks: Sequence[Fields]) -> list[Message]:
        return list(map(self._parse_result, blocks))

    @abstractmethod
    def _parse_result(self, result: Fields) -> Message: ...

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
