"""Finds what breaks clients of a released API: `python -m release.compatibility RELEASED CURRENT`.

1. What could be sent can still be sent: no path, method, parameter, field, type or allowed value is
   gone, nothing more is required, and no limit is tighter.
2. What was answered is still answered: no status and no field is gone, a field that was always
   there still is, and has no new type. New fields are allowed, and new values of a set as well;
   docs/clients.md says what generated clients do with them.
3. Both are one question: does a reader take all values of a schema? For requests the reader is the
   current schema, and the values are of the released one; for answers it is the other way round.
4. Of a union, each alternative needs one that takes it. Schemas that refer to themselves are
   compared once for each pair.
5. Ids of operations and names of schemas stay: they are names in generated clients.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]

METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
MINIMA = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
MAXIMA = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
WHOLE = ("pattern", "format", "uniqueItems", "propertyNames", "not", "if", "then", "else")
"""Keywords that are compared as a whole: another value counts as tighter."""


@dataclass(frozen=True, slots=True)
class Document:
    """An OpenAPI document, whose references it follows."""

    root: Json

    def follow(self, value: Any) -> Json:
        """Return a schema, a parameter or an answer without a reference at its top."""
        if value is True:
            return {}
        while "$ref" in value:
            found: Any = self.root
            for key in value["$ref"].removeprefix("#/").split("/"):
                found = found[key.replace("~1", "/").replace("~0", "~")]
            value = found
        result: Json = value
        return result

    def alternatives(self, schema: Any) -> Iterator[Json]:
        """Yield the schemas of a union, each with one type at most."""
        schema = self.follow(schema)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                for part in schema[keyword]:
                    yield from self.alternatives(part)
                return
        types = schema.get("type")
        if isinstance(types, list):
            yield from ({**schema, "type": name} for name in types)
        else:
            yield schema


@dataclass(slots=True)
class Comparison:
    """Compares the schemas of one direction (rule 3)."""

    values: Document
    reader: Document
    is_request: bool
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def breaks(self, values: Any, reader: Any, where: str) -> Iterator[str]:
        """Yield why the reader does not take all values."""
        pair = (json.dumps(values, sort_keys=True), json.dumps(reader, sort_keys=True))
        if pair[0] == pair[1] and "$ref" not in pair[0]:
            return
        if "$ref" in pair[0] and "$ref" in pair[1]:
            if pair in self._seen:
                return
            self._seen.add(pair)
        readers = list(self.reader.alternatives(reader))
        for alternative in self.values.alternatives(values):
            tries = [list(self._one(alternative, other, where)) for other in readers]
            # The nearest alternative says best what is wrong.
            yield from min(tries, key=len)

    def _one(self, values: Json, reader: Json, where: str) -> Iterator[str]:
        expected, given = reader.get("type"), values.get("type")
        if expected not in (None, given) and (expected, given) != ("number", "integer"):
            yield f"{where}: {'no longer takes' if self.is_request else 'can be'} {given or 'any'}"
            return
        if self.is_request:
            yield from self._tighter(values, reader, where)
        yield from self._object(values, reader, where)
        if "items" in reader:
            yield from self.breaks(values.get("items", True), reader["items"], f"{where}[]")

    def _tighter(self, values: Json, reader: Json, where: str) -> Iterator[str]:
        allowed, sent = _allowed(reader), _allowed(values)
        if allowed is not None:
            gone = ["any other value"] if sent is None else [v for v in sent if v not in allowed]
            yield from (f"{where}: no longer takes {value!r}" for value in gone)
        for keywords, sign in ((MINIMA, 1), (MAXIMA, -1)):
            for keyword in keywords:
                if keyword in reader and (
                    keyword not in values or sign * reader[keyword] > sign * values[keyword]
                ):
                    yield f"{where}: {keyword} is now {reader[keyword]}"
        for keyword in WHOLE:
            if keyword in reader and reader[keyword] != values.get(keyword):
                yield f"{where}: another {keyword}"

    def _object(self, values: Json, reader: Json, where: str) -> Iterator[str]:
        known: Json = reader.get("properties", {})
        given: Json = values.get("properties", {})
        released, current = (given, known) if self.is_request else (known, given)
        gone = sorted(released.keys() - current.keys())
        yield from (f"{where}.{name}: is gone" for name in gone)
        for name in sorted(set(reader.get("required", ())) - set(values.get("required", ()))):
            if name not in gone:
                yield f"{where}.{name}: {'is now required' if self.is_request else 'can be absent'}"
        for name in sorted(known.keys() & given.keys()):
            yield from self.breaks(given[name], known[name], f"{where}.{name}")
        others, rest = values.get("additionalProperties", True), reader.get("additionalProperties")
        if isinstance(rest, Mapping) and others is not False:
            yield from self.breaks(others, rest, f"{where}.*")
        elif self.is_request and rest is False and others is not False:
            yield f"{where}: no longer takes other fields"


def _allowed(schema: Json) -> list[Any] | None:
    """Return the values of a set, None if it is not one."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def breaks(released: Json, current: Json) -> list[str]:
    """Return what the current description breaks for clients of the released one."""
    old, new = Document(released), Document(current)
    names = [document.get("components", {}).get("schemas", {}) for document in (released, current)]
    found = [f"The schema {name}: is gone" for name in names[0] if name not in names[1]]
    for path, methods in released["paths"].items():
        for method in METHODS:
            if method not in methods:
                continue
            where = f"{method.upper()} {path}"
            if method not in current["paths"].get(path, {}):
                found.append(f"{where}: is gone")
                continue
            before, after = methods[method], current["paths"][path][method]
            if before.get("operationId") != after.get("operationId"):
                found.append(f"{where}: has another operationId")
            found += _requests(old, new, before, after, where)
            found += _answers(old, new, before, after, where)
    return found


def _parameters(document: Document, operation: Json) -> dict[tuple[str, str], Json]:
    found = map(document.follow, operation.get("parameters", ()))
    return {(parameter["in"], parameter["name"]): parameter for parameter in found}


def _requests(old: Document, new: Document, before: Json, after: Json, where: str) -> Iterator[str]:
    compared = Comparison(old, new, is_request=True)
    was, now = _parameters(old, before), _parameters(new, after)
    for key, parameter in now.items():
        if parameter.get("required") and not was.get(key, {}).get("required"):
            yield f"{where}: the {key[0]} parameter {key[1]} is now required"
    for key, parameter in was.items():
        name = f"the {key[0]} parameter {key[1]}"
        if key not in now:
            yield f"{where}: {name} is gone"
        else:
            yield from compared.breaks(parameter["schema"], now[key]["schema"], f"{where}: {name}")
    body, wanted = (
        old.follow(before.get("requestBody", {})),
        new.follow(after.get("requestBody", {})),
    )
    if wanted.get("required") and not body.get("required"):
        yield f"{where}: a body is now required"
    yield from _contents(compared, body, wanted, f"{where}: body")


def _answers(old: Document, new: Document, before: Json, after: Json, where: str) -> Iterator[str]:
    compared = Comparison(new, old, is_request=False)
    for status, answer in before["responses"].items():
        if status not in after["responses"]:
            # Fewer reasons to fail break nobody.
            if status < "4":
                yield f"{where}: the answer {status} is gone"
            continue
        was, now = old.follow(answer), new.follow(after["responses"][status])
        name = f"{where}: {status}"
        for header in sorted(was.get("headers", {}).keys() - now.get("headers", {}).keys()):
            yield f"{name}: the header {header} is gone"
        yield from _contents(compared, was, now, name)


def _contents(compared: Comparison, was: Json, now: Json, where: str) -> Iterator[str]:
    """Compare the bodies of two requests or answers, media type by media type."""
    for media, content in was.get("content", {}).items():
        if media not in now.get("content", {}):
            yield f"{where}: {media} is gone"
            continue
        pair = content.get("schema", True), now["content"][media].get("schema", True)
        yield from compared.breaks(*(pair if compared.is_request else pair[::-1]), where)


def is_new_major(released: Json, current: Json) -> bool:
    """Return whether the version says that clients break; below 1.0 the second number does."""
    versions = [
        map(int, document["info"]["version"].split(".")) for document in (released, current)
    ]
    (old, old_minor, _), (new, new_minor, _) = versions
    return new > old or new == old == 0 < new_minor - old_minor


def main(released: str, current: str) -> int:
    """Print what is broken; the exit code is 1 if that needs another version."""
    if not Path(released).exists():
        print("Nothing is released yet: the description may change.")
        return 0
    first, second = (json.loads(Path(name).read_text("utf-8")) for name in (released, current))
    found = breaks(first, second)
    for line in found:
        print(line)
    if found and is_new_major(first, second):
        return 0
    if found:
        print(
            f"{len(found)} changes break clients of {first['info']['version']}:"
            " CONTRIBUTING.md says what to do.",
            file=sys.stderr,
        )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
