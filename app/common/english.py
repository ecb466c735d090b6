"""English words: their stems, and those that say little about what a question looks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_FUNCTION_WORDS = """
a about above after again against all also am an and any are as at be because been before being
below between both but by can could d did didn do does doesn doing don done down during each either
else few for from further had has hasn have haven having he her here hers herself him himself his
how i if in into is isn it its itself just ll m may me might more most must my myself no nor not now
of off on once only or other our ours ourselves out over own please re s same shall she should so
some such t than that the their theirs them themselves then there these they this those through to
too under until up upon us ve very was wasn we were weren what when where whether which while who
whom whose why will with won would wouldn you your yours yourself yourselves
"""
FUNCTION_WORDS: Final = frozenset(_FUNCTION_WORDS.split())


def stems(words: Sequence[str]) -> list[str]:
    """Return the stems of words in lower case."""
    import Stemmer

    # A stemmer is not thread-safe.
    found: list[str] = Stemmer.Stemmer("english", 0).stemWords(words)
    return found
