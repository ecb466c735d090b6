"""Removes what harnesses add to messages: reminders, notices and the output of commands."""

from __future__ import annotations

import re

_TAGS = (
    "system-reminder|environment_details|local-command-stdout|local-command-stderr"
    "|local-command-caveat|command-name|command-message|command-args|command-contents"
    "|task-notification|ide_opened_file|ide_selection|ide_diagnostics|post-tool-use-hook"
    "|user-prompt-submit-hook|session-start-hook|EXTRA_INSTRUCTIONS|environment_context"
    "|user_info|project_layout|open_and_recently_viewed_files|additional_data|attached_files"
    "|system_reminder|repository_context|repo_map|bash-stdout|bash-stderr|bash-input"
    "|automode-notice|available-deferred-tools|feedback-notice|uploaded_files"
)
_OPEN = re.compile(rf"<({_TAGS}|[a-z]+(?:-[a-z]+)+)(?:\s[^<>\n]{{0,200}})?>", re.IGNORECASE)
"""Tags of known harnesses; a name with hyphens is one of any harness, no element of HTML."""
_NOTICE = re.compile(
    r"^\s*(?:\[Request interrupted by user[^\]\n]*\]|Caveat: The messages below were generated"
    r"|\[image(?:[:,# ][^\]\n]*)?\]|Base directory for this skill:"
    r"|Your task is (?:now )?(?:complete|done)|\(no content\)|\(no output\)|\[empty message\])",
    re.IGNORECASE,
)
_LOGGED = re.compile(
    r"^\s*(?:\[?(?:INFO|DEBUG|TRACE|WARN|WARNING|ERROR|NOTICE|FATAL)\b[\]: ]"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?\d\d:\d\d:\d\d|\w{3} +\d\d? \d\d:\d\d:\d\d |\s+at \S+\()"
)
_SKILL = re.compile(r"^\s*Base directory for this skill:")
_RESUMED = re.compile(r"^\s*This session is being continued from a previous conversation")
_OUTPUT = re.compile(
    r"^\s*(?:\[File: |\(Open file: |\(Current directory: |bash-\$|\[The command completed"
    r"|Observation:|EXECUTION RESULT|OBSERVATION:|Tool result|Exit code: |\{\"|\[\{)"
)
_PROMPT_END = re.compile(r"(?:bash-\$|\(Current directory: [^\n]{0,400}\)\s*bash-\$)\s*$")


def without_noise(text: str) -> str:
    """Return a user's text without what a harness added to it."""
    if "<" in text:
        text = _without_tags(text)
    if _SKILL.match(text):
        return ""
    lines = [line for line in text.splitlines() if not (_NOTICE.match(line) or _LOGGED.match(line))]
    return "\n".join(lines).strip()


def _without_tags(text: str) -> str:
    """Remove elements of a harness with their content, in one pass."""
    kept: list[str] = []
    at = 0
    lowered = ""
    unclosed: set[str] = set()
    while match := _OPEN.search(text, at):
        kept.append(text[at : match.start()])
        lowered = lowered or text.lower()
        closing = f"</{match[1].lower()}>"
        end = -1 if closing in unclosed else lowered.find(closing, match.end())
        if end < 0:
            unclosed.add(closing)
        at = end + len(closing) if end >= 0 else match.end()
    kept.append(text[at:])
    return "".join(kept)


def is_output(text: str) -> bool:
    """Whether a user message is the output of a tool, which some harnesses send as the user."""
    return _OUTPUT.match(text) is not None or _PROMPT_END.search(text[-500:]) is not None


def is_resumption(text: str) -> bool:
    """Whether a user message is a harness's own summary of an earlier conversation."""
    return _RESUMED.match(text) is not None
