"""Token counts with OpenAI's o200k_base vocabulary, offline. No other module imports the library.

1. Text is counted in slices, because a long run of spaces takes quadratic time. A count is the sum
   over slices, so it depends on the text alone. A slice ends after a newline, else after a space,
   else at its maximum length.
2. A slice on which the library fails counts as bytes / 4, and so does all text without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from threading import Lock

VOCABULARY = "o200k_base"
SLICE_CHARS = 16 * 1024
_MIN_SLICE_CHARS = SLICE_CHARS * 3 // 4

Count = Callable[[str], int]


class LocalTokenizer:
    """Counts tokens; thread-safe. `count_slice` is the library's count, loaded at the first one."""

    def __init__(self, count_slice: Count | None = None) -> None:
        self._count_slice = count_slice
        self._one_slice = Lock()

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`, 0 for the empty text."""
        if len(text) <= SLICE_CHARS:
            return self._count(text)
        total = 0
        for part in slices(text):
            # Each count at a time takes 16 MB of scratch memory, which the library keeps.
            with self._one_slice:
                total += self._count(part)
        return total

    def _count(self, text: str) -> int:
        count_slice = self._count_slice
        if count_slice is None:
            count_slice = self._count_slice = load() or quarter_bytes
        try:
            return count_slice(text)
        except UnicodeEncodeError:  # lone surrogates
            return self._count(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # a panic of the library is not an Exception
            return quarter_bytes(text)


def slices(text: str) -> Iterator[str]:
    """Yield the text in slices of at most `SLICE_CHARS` characters (rule 1)."""
    start = 0
    while len(text) - start > SLICE_CHARS:
        end = start + SLICE_CHARS
        for separator in ("\n", " "):
            index = text.rfind(separator, start + _MIN_SLICE_CHARS, end)
            if index >= 0:
                end = index + 1
                break
        yield text[start:end]
        start = end
    yield text[start:]


def quarter_bytes(text: str) -> int:
    """Return the UTF-8 bytes of a text / 4, rounded down."""
    return len(text.encode("utf-8", "surrogatepass")) // 4


@cache  # every app of a process has the same vocabulary
def load() -> Count | None:
    """Return the library's count, None where it is missing. Takes a part of a second once.

    The library keeps 16 MB of scratch memory for the thread that counts first, and as much for
    others; preparing it takes 10 ms. So the event loop's thread has to count first, then another.
    """
    with suppress(Exception):
        import toktok  # loads a Rust library: not before the first count

        # The public function costs a multiple of a short text's count at each call.
        count: Count = toktok._encoding(VOCABULARY).count
        return count
    return None
