"""The check of a release finds every kind of break, and nothing else."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from release.compatibility import breaks

ROOT = Path(__file__).parent.parent
CURRENT = ROOT / "openapi" / "openapi.json"
PATH = "/v1/notes/{id}"


def note(name: str) -> dict[str, Any]:
    """Return a schema that refers to itself by this name."""
    return {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 100},
            "kind": {"type": "string", "enum": ["plain", "rich"]},
            "size": {"type": "integer", "minimum": 0},
            "owner": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "parts": {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["text"],
        "additionalProperties": False,
    }


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Notes", "version": "1.0.0"},
    "paths": {
        PATH: {
            "parameters": [],
            "put": {
                "operationId": "put_note",
                "parameters": [
                    {"in": "path", "name": "id", "required": True, "schema": {"type": "string"}},
                    {"in": "query", "name": "dry_run", "schema": {"type": "boolean"}},
                ],
                "requestBody": {
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Note"}}
                    }
                },
                "responses": {
                    "200": {
                        "headers": {"ETag": {"schema": {"type": "string"}}},
                        "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Stored"}}
                        },
                    },
                    "404": {"description": "Unknown."},
                },
            },
            "get": {"responses": {"200": {"$ref": "#/components/responses/Note"}}},
        }
    },
    "components": {
        "schemas": {"Note": note("Note"), "Stored": note("Stored"), "Unused": {}},
        "responses": {
            "Note": {
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Stored"}}}
            }
        },
    },
}
Change = Callable[[Any], object]


def sent(change: Change) -> Change:
    """Change the schema of what is sent."""
    return lambda document: change(document["components"]["schemas"]["Note"])


def answered(change: Change) -> Change:
    """Change the schema of what is answered."""
    return lambda document: change(document["components"]["schemas"]["Stored"])


def put(change: Change) -> Change:
    """Change the operation."""
    return lambda document: change(document["paths"][PATH]["put"])


def prop(name: str, **keywords: object) -> Change:
    """Set keywords of a property."""
    return lambda schema: schema["properties"][name].update(keywords)


def drop(name: str) -> Change:
    """Remove a property."""
    return lambda schema: schema["properties"].pop(name)


BREAKS: list[tuple[Change, str]] = [
    (lambda document: document["paths"].pop(PATH), "GET /v1/notes/{id}: is gone"),
    (lambda document: document["paths"][PATH].pop("put"), "PUT /v1/notes/{id}: is gone"),
    (put(lambda op: op["parameters"][1].update(required=True)), "dry_run is now required"),
    (
        put(lambda op: op["parameters"][1].update(schema={"type": "integer"})),
        "the query parameter dry_run: no longer takes boolean",
    ),
    (
        put(lambda op: op["requestBody"].update(content={"text/plain": {}})),
        "body: application/json is gone",
    ),
    (sent(drop("kind")), "body.kind: is gone"),
    (sent(lambda note: note["required"].append("kind")), "body.kind: is now required"),
    (sent(prop("kind", enum=["plain"])), "body.kind: no longer takes 'rich'"),
    (sent(prop("text", maxLength=50)), "body.text: maxLength is now 50"),
    (
        sent(prop("labels", additionalProperties=False)),
        "body.labels: no longer takes other fields",
    ),
    (answered(drop("kind")), "200.kind: is gone"),
    (answered(lambda note: note["required"].remove("text")), "200.text: can be absent"),
]


def changed(change: Change) -> list[str]:
    """Return what a change of the document breaks."""
    document = copy.deepcopy(DOCUMENT)
    change(document)
    return breaks(DOCUMENT, document)


@pytest.mark.parametrize(("change", "said"), BREAKS, ids=[said for _, said in BREAKS])
def test_each_kind_of_break_is_found(change: Change, said: str) -> None:
    """What a client of the released API may do or read is missed when it is gone."""
    found = changed(change)
    assert any(line.endswith(said) for line in found), found


def test_a_break_of_the_real_description_ends_the_check_with_a_message(tmp_path: Path) -> None:
    """The command names what is broken and fails, which stops `make check`."""
    document = json.loads(CURRENT.read_text("utf-8"))
    del document["components"]["schemas"]["ShownConversation"]["properties"]["head_seq"]
    broken = tmp_path / "openapi.json"
    broken.write_text(json.dumps(document), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "release.compatibility", str(CURRENT), str(broken)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "GET /v1/conversations/{conversation_id}: 200.head_seq: is gone\n" in done.stdout
    assert "break clients of " in done.stderr
