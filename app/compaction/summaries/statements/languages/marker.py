"""The markers of statements: words and phrases with a meaning, in each language."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Marker(StrEnum):
    """What a word or phrase says about its sentence.

    - `STANDING`: it holds from now on. `HABIT` begins an instruction; with a word of `FORM`, such
      as a unit or a language, that holds from now on as well.
    - `ACKNOWLEDGEMENT`: no statement at all if it consists of such words only.
    - `PROCESS`: the speaker announces the next step, which says nothing afterwards.
    """

    STANDING = "standing"
    HABIT = "habit"
    FORM = "form"
    CONSTRAINT = "constraint"
    PREFERENCE = "preference"
    GOAL = "goal"
    DECISION = "decision"
    FINDING = "finding"
    UPDATE = "update"
    OPEN = "open"
    FACT = "fact"
    CONTRAST = "contrast"
    ACKNOWLEDGEMENT = "acknowledgement"
    PROCESS = "process"
    COPULA = "copula"
    STOP = "stop"
    FILLER = "filler"


Phrases = Mapping[Marker, str]
"""Phrases by marker, separated by `|`.

`^` before a phrase: only at the start of a clause. `*` after a word: any ending.
"""
