"""OpenAPI links: the operations that follow a response, for clients and test generators.

1. `RESPONSE_IDS` names the ids in a response. It is linked to every operation whose path has one of
   them and no unknown parameter.
2. `FURTHER_LINKS` has links with other parameters than the ids of a path.
3. A list that was set is read again with its version.
4. A link has the name of its target operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_REQUEST_PATH = "$request.path."
_RESPONSE_BODY = "$response.body#/"
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")

RESPONSE_IDS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("create_agent", "201"): {"agent_id": "agent_id"},
    ("create_conversation", "201"): {"conversation_id": "conversation_id"},
    ("fork_conversation", "201"): {"conversation_id": "conversation_id"},
    ("import_conversation", "201"): {"conversation_id": "conversation_id"},
    ("append_messages", "201"): {"message_id": "messages/0/id"},
    ("upload_blob", "201"): {"ref": "id"},
    ("compact", "200"): {"compaction_id": "compaction_id"},
    ("compact", "202"): {"job_id": "job_id"},
    ("save_agent_snapshot", "201"): {"session_id": "session_id"},
    ("save_conversation_snapshot", "201"): {"session_id": "session_id"},
    ("import_snapshot", "201"): {"session_id": "session_id"},
    ("set_model", "200"): {"model": "model"},
}
"""JSON pointers to ids in the body of a response, by operation and status."""

_SAME_CONVERSATION = {"conversation_id": f"{_REQUEST_PATH}conversation_id"}
FURTHER_LINKS: Mapping[tuple[str, str], Mapping[str, Mapping[str, str]]] = {
    ("create_agent", "201"): {
        "list_conversations": {"agent_id": f"{_RESPONSE_BODY}agent_id"},
        "list_snapshots": {"agent_id": f"{_RESPONSE_BODY}agent_id"},
    },
    ("create_conversation", "201"): {
        "list_snapshots": {"conversation_id": f"{_RESPONSE_BODY}conversation_id"},
    },
    ("append_messages", "201"): {
        "list_messages": _SAME_CONVERSATION,
        "build_context": _SAME_CONVERSATION,
        "compact": _SAME_CONVERSATION,
        "save_conversation_snapshot": _SAME_CONVERSATION,
        "fork_conversation": _SAME_CONVERSATION,
    },
    ("build_context", "200"): {
        "get_context": _SAME_CONVERSATION | {"as_of": f"{_RESPONSE_BODY}build_id"},
        "append_messages": _SAME_CONVERSATION,
        "get_state": _SAME_CONVERSATION,
    },
}
"""Links with parameters, by operation and status, then by target operation."""


def add_links(paths: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the links to the responses of a document."""
    parameters = {
        operation["operationId"]: frozenset(_PATH_PARAMETER.findall(path))
        for path, operations in paths.items()
        for operation in operations.values()
    }
    for operations in paths.values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                links = dict(_links(operation["operationId"], status, parameters))
                if links:
                    response["links"] = dict(sorted(links.items()))


def _links(
    name: str, status: str, path_parameters: Mapping[str, frozenset[str]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    ids = RESPONSE_IDS.get((name, status), {})
    expressions = {key: f"{_REQUEST_PATH}{key}" for key in path_parameters[name]}
    expressions |= {key: f"{_RESPONSE_BODY}{pointer}" for key, pointer in ids.items()}
    for target, needed in path_parameters.items():
        if target != name and needed & ids.keys() and needed <= expressions.keys():
            yield target, _link(target, {key: expressions[key] for key in sorted(needed)})
    for target, parameters in FURTHER_LINKS.get((name, status), {}).items():
        yield target, _link(target, dict(parameters))
    if status == "200" and name.startswith("set_") and name.endswith(("_sections", "_tools")):
        target = f"get_{name.removeprefix('set_')}"
        yield target, _link(target, expressions | {"version": f"{_RESPONSE_BODY}version"})


def _link(target: str, parameters: dict[str, str]) -> dict[str, Any]:
    return {"operationId": target, "parameters": parameters}
