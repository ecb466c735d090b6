"""Code blocks of the documentation, which tests run as they are printed."""

from __future__ import annotations

import re
import subprocess


def blocks(document: str, language: str) -> list[str]:
    """Return a document's code blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", document, re.DOTALL)


def block(document: str, language: str, holding: str = "") -> str:
    """Return a document's one code block of a language that holds a text."""
    (found,) = [text for text in blocks(document, language) if holding in text]
    return found


def pasted(script: str) -> str:
    """Run a script in a shell that ends with the first failure; returns what it prints."""
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
