"""Examples of answers, made from their schemas and a table of values by the names of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TIME = "2026-01-05T09:31:12.000123+00:00"
_ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
VALUES: dict[str, Any] = {
    "after_msg_count": 12,
    "after_tokens": 3980,
    "agent_id": "support-bot",
    "before_msg_count": 46,
    "before_tokens": 9120,
    "betas": [],
    "build_id": f"{_ID}.1",
    "byte_size": 48231,
    "code": "SERVICE_UNAVAILABLE",
    "compacted": True,
    "compaction_id": _ID,
    "content": "It rains in Bergen.",
    "context_window": 128000,
    "conversation_id": _ID,
    "cost_usd": 0.00081,
    "degraded": [],
    "depends_on": [],
    "description": "Answers questions of travellers.",
    "effective_window": 123904,
    "epoch_id": _ID,
    "factor": 1.0,
    "hidden_range": [6, 41],
    "id": _ID,
    "job_id": _ID,
    "kind": "compact",
    "margin": 0.0,
    "max_output_tokens": 4096,
    "method": "tokenizer",
    "model": "gpt-4o",
    "name": "Support bot",
    "next_threshold": "due",
    "prefix_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "prompt_hash": "5f2a9c0b7d1e4f68",
    "report_id": _ID,
    "shown_ranges": [[1, 2]],
    "sources": [[6, 41]],
    "strategies_run": ["sandwich"],
    "summary": "The user plans a trip to Bergen in May; trains were compared.",
    "summary_range": [6, 41],
    "summary_tokens": 420,
    "text": "The user plans a trip to Bergen in May; trains were compared.",
    "tokens_used": 2146,
    "total": 128000,
    "used_percentage": 1.73,
    "used_tokens": 2146,
}
"""Other fields are null where they may be, or get a value by their type: 1, `text`."""
_BY_FORMAT = {"date-time": _TIME, "date": "2026-01-05", "uuid": _ID}
_BY_TYPE: dict[str, Any] = {
    "boolean": False,
    "integer": 1,
    "number": 0.5,
    "object": {},
    "string": "text",
}
_TYPES = {"boolean": bool, "integer": int, "number": float, "string": str, "array": list}


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> Any:
    """Return an example of a schema, whose field has this name in the object around it."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if examples := schema.get("examples"):
        return examples[0]
    if "const" in schema or "enum" in schema:
        choices = schema.get("enum") or [schema["const"]]
        return VALUES[name] if VALUES.get(name) in choices else choices[0]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        if name not in VALUES and {"type": "null"} in options:
            return None
        return example_of(options[0], schemas, name)
    if properties := schema.get("properties"):
        return {field: example_of(inner, schemas, field) for field, inner in properties.items()}
    kind = schema.get("type", "string")
    if name in VALUES and isinstance(VALUES[name], _TYPES.get(kind, ())):
        return VALUES[name]
    if kind == "array":
        items = schema.get("prefixItems") or [schema["items"]]
        return [example_of(item, schemas, name) for item in items]
    if "minimum" in schema and schema["minimum"] > 1:
        return int(schema["minimum"])
    return _BY_FORMAT.get(schema.get("format", "")) or _BY_TYPE[kind]
