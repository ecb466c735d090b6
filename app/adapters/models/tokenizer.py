"""Token counts with OpenAI's o200k_base vocabulary, offline. No other module imports tiktoken.

1. Text is counted in slices, because a long run of spaces takes quadratic time or crashes the
   library. A count is the sum over slices, so it depends on the text alone.
2. A slice ends after a newline, else after a space, else at its maximum length.
3. A slice on which the library fails counts as bytes / 4. So does all text when the vocabulary is
   missing: nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from threading import Lock

CACHE_VARIABLE = "TIKTOKEN_CACHE_DIR"
VOCABULARY = "o200k_base"
VOCABULARY_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""The library's file name of the vocabulary: the SHA-1 of its URL."""
VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
SLICE_CHARS = 16 * 1024
_MIN_SLICE_CHARS = SLICE_CHARS * 3 // 4

Encode = Callable[[str], Sequence[int]]


class TiktokenTokenizer:
    """Counts tokens; thread-safe. The vocabulary is loaded at the first count.

    `exact` becomes false when the vocabulary is missing and counts are bytes / 4.
    """

    def __init__(self, vocabulary: Callable[[], Encode | None] | None = None) -> None:
        self.exact = True
        self._vocabulary = vocabulary or _load_vocabulary
        self._lock = Lock()
        self._encode: Encode | None = None

    def load(self) -> None:
        """Load the vocabulary now; takes about 0.3 s and 100 MB once per process."""
        self._loaded_encode()

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`, 0 for the empty text."""
        encode = self._encode or self._loaded_encode()
        if len(text) <= SLICE_CHARS:
            return _count_slice(encode, text)
        return sum(_count_slice(encode, part) for part in slices(text))

    def _loaded_encode(self) -> Encode:
        with self._lock:
            if self._encode is None:
                encode = self._vocabulary()
                self.exact = encode is not None
                self._encode = encode or _quarter_bytes
            return self._encode


def slices(text: str) -> Iterator[str]:
    """Yield the text in slices of at most `SLICE_CHARS` characters (rule 2)."""
    start = 0
    while len(text) - start > SLICE_CHARS:
        end = _slice_end(text, start)
        yield text[start:end]
        start = end
    yield text[start:]


def _slice_end(text: str, start: int) -> int:
    min_end, max_end = start + _MIN_SLICE_CHARS, start + SLICE_CHARS
    for separator in ("\n", " "):
        index = text.rfind(separator, min_end, max_end)
        if index >= 0:
            return index + 1
    return max_end


def _count_slice(encode: Encode, text: str) -> int:
    try:
        return len(encode(text))
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:  # a panic of the library is not an Exception
        return len(_quarter_bytes(text))


def _quarter_bytes(text: str) -> Sequence[int]:
    return range(len(text.encode("utf-8", "surrogatepass")) // 4)


def _load_vocabulary() -> Encode | None:
    """Return the encoder, None when its vocabulary is not on disk or damaged."""
    directory = os.environ.get(CACHE_VARIABLE) or _bundled_directory()
    return _load_from(directory) if directory is not None else None


@cache  # every app of a process has the same vocabulary
def _load_from(directory: str) -> Encode | None:
    if not _is_intact(Path(directory) / VOCABULARY_FILE):
        return None
    os.environ.setdefault(CACHE_VARIABLE, directory)
    import tiktoken  # loads a Rust library: not before the first count

    encoding = tiktoken.get_encoding(VOCABULARY)
    # The Rust side has its own copy; this one is for pickling and takes 28 MB.
    encoding._mergeable_ranks = {}
    return encoding.encode_ordinary


def _bundled_directory() -> str | None:
    """Return the folder of LiteLLM's copy of the vocabularies, without importing it."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent / "litellm_core_utils" / "tokenizers")


def _is_intact(path: Path) -> bool:
    # The library would download a damaged file again.
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == VOCABULARY_SHA256
    except OSError:
        return False
