"""Token counts with OpenAI's o200k_base vocabulary, offline. No other module imports the libraries.

1. `toktok` counts: it takes a tenth of the time of `tiktoken` or less. `tiktoken` is the reference
   that it must equal. It counts where `toktok` is missing, fails or miscounts a sample, and the
   texts of `needs_reference`, where the two differ. It is loaded at its first use.
2. Text is counted in slices, because a long run of spaces takes quadratic time or crashes
   `tiktoken`. A count is the sum over slices, so it depends on the text alone.
3. A slice ends after a newline, else after a space, else at its maximum length.
4. A slice on which both libraries fail counts as bytes / 4. So does all text without libraries or
   vocabularies: nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
SAMPLES = (
    ("", 0),
    ("hello world", 2),
    ("The quick brown fox jumps over the lazy dog near the quiet river bank. ", 16),
    ("<|endoftext|> I'LL we've 'tis don'T", 14),
    ("1234567 89\r\n\n\t  x = {'a': [1, 2.5]}  \n", 21),
    ("ÀÉÎ straße Ǆ ǅ ʰ e\u0301 \u0301\u0301", 19),
    ("Привет, мир! שלום مرحبا नमस्ते สวัสดี", 15),
    ("中文字漢語、日本語のテキスト 한국어", 11),
    ("😀👩\u200d👩\u200d👧🇩🇪 \u00a0\u2028\u3000\ufeff", 17),
)
"""Texts with the counts of `tiktoken`, which a count by `toktok` must equal to be used."""

Encode = Callable[[str], Sequence[int]]
Count = Callable[[str], int]

_LONG_S = "'\u017f"
"""Ends a word like `'s` in tiktoken's pattern, which ignores case, but not in toktok's."""
_OFTEN_NEW = re.compile(
    "[^\x00-\u07ff\u0900-\u0bff\u0d00-\u19ff\u2000-\ua7cd\ua800-\uffff\U0001f000-\U0001ffff]"
)
"""Characters of blocks that have some of `_NEW`; most texts have none, and this is a fast test."""
_NEW = re.compile(
    "[\u088f\u0c5c\u0cdc\u1acf-\u1add\u1ae0-\u1aeb\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1"
    "\U00010940-\U00010959\U00010ec5-\U00010ec7\U00010efa\U00010efb\U00011b60-\U00011b67"
    "\U00011db0-\U00011ddb\U00011de0-\U00011de9\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3"
    "\U00016ff2-\U00016ff6\U000187f8-\U000187ff\U00018d09-\U00018d1e\U00018d80-\U00018df2"
    "\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6f5\U0001e6fe\U0001e6ff\U0002b73a-\U0002b73f"
    "\U0002cea2-\U0002cead\U000323b0-\U00033479]"
)
"""The letters, marks and digits of Unicode 17: toktok knows them, tiktoken's Unicode 16 does not.

Found by a comparison of all characters in contexts that depend on their class.
"""


class TiktokenTokenizer:
    """Counts tokens as tiktoken does; thread-safe. Vocabularies are loaded at the first count.

    `exact` becomes false when no vocabulary can be loaded and counts are bytes / 4. With a
    `vocabulary`, its tokens are counted, without toktok.
    """

    def __init__(self, vocabulary: Callable[[], Encode | None] | None = None) -> None:
        self.exact = True
        self._vocabulary = vocabulary
        self._lock = Lock()
        self._one_slice = Lock()
        self._count_slice: Count | None = None

    def load(self) -> None:
        """Load the vocabulary now; takes about 0.3 s and 70 MB once per process."""
        self._loaded()

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`, 0 for the empty text."""
        count_slice = self._count_slice or self._loaded()
        if len(text) <= SLICE_CHARS:
            return count_slice(text)
        # Each count at a time takes 16 MB of scratch memory, which toktok keeps.
        total = 0
        for part in slices(text):
            with self._one_slice:
                total += count_slice(part)
        return total

    def _loaded(self) -> Count:
        with self._lock:
            if self._count_slice is None:
                fast = load_fast() if self._vocabulary is None else None
                if fast is not None:
                    self._count_slice = checked_count(fast)
                else:
                    encode = (self._vocabulary or load_reference)()
                    self.exact = encode is not None
                    self._count_slice = _count_by(encode or _quarter_bytes)
            return self._count_slice


def needs_reference(text: str) -> bool:
    """Return whether toktok may count a text otherwise than tiktoken."""
    if _LONG_S in text:
        return True
    return _OFTEN_NEW.search(text) is not None and _NEW.search(text) is not None


def slices(text: str) -> Iterator[str]:
    """Yield the text in slices of at most `SLICE_CHARS` characters (rule 2)."""
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


def checked_count(fast: Count) -> Count:
    """Return the count of a slice by toktok, by tiktoken where they may differ (rule 1)."""

    def count_slice(text: str) -> int:
        if not text.isascii() and needs_reference(text):
            reference = _reference()
            if reference is not None:
                return _count_by(reference)(text)
        try:
            return fast(text)
        except UnicodeEncodeError:  # a lone surrogate, which tiktoken replaces
            return count_slice(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # a panic of the library is not an Exception
            return _count_by(_reference() or _quarter_bytes)(text)

    return count_slice


@cache
def _reference() -> Encode | None:
    return load_reference()


def _count_by(encode: Encode) -> Count:
    """Return the count of a slice by its tokens, by its bytes where that fails (rule 4)."""

    def count_slice(text: str) -> int:
        try:
            return len(encode(text))
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException:  # a panic of the library is not an Exception
            return len(_quarter_bytes(text))

    return count_slice


def _quarter_bytes(text: str) -> Sequence[int]:
    return range(len(text.encode("utf-8", "surrogatepass")) // 4)


def preload_fast() -> None:
    """Load toktok's vocabulary in any thread, without a count.

    toktok keeps 16 MB of scratch memory for the thread that counts first, and as much for others;
    preparing it takes 10 ms. So the event loop's thread has to be the first, then another one.
    """
    with suppress(BaseException):  # `load_fast` meets the error again
        import toktok

        toktok._encoding(VOCABULARY)


@cache
def load_fast() -> Count | None:
    """Return the count of toktok, None where it is missing or miscounts a sample."""
    try:
        import toktok  # loads a Rust library: not before the first count

        # The public function costs a multiple of a short text's count at each call.
        count: Count = toktok._encoding(VOCABULARY).count
        return count if all(count(text) == tokens for text, tokens in SAMPLES) else None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:  # a panic of the library is not an Exception
        return None


def load_reference() -> Encode | None:
    """Return the encoder, None when its vocabulary is not on disk or damaged."""
    directory = os.environ.get(CACHE_VARIABLE)
    spec = importlib.util.find_spec("litellm")  # which has a copy, and is not imported
    if not directory and spec is not None and spec.origin is not None:
        directory = str(Path(spec.origin).parent / "litellm_core_utils" / "tokenizers")
    return _load_from(directory) if directory else None


@cache  # every app of a process has the same vocabulary
def _load_from(directory: str) -> Encode | None:
    try:  # the library would download a damaged file again
        vocabulary = (Path(directory) / VOCABULARY_FILE).read_bytes()
    except OSError:
        return None
    if hashlib.sha256(vocabulary).hexdigest() != VOCABULARY_SHA256:
        return None
    del vocabulary
    os.environ.setdefault(CACHE_VARIABLE, directory)
    import tiktoken  # loads a Rust library: not before the first count

    encoding = tiktoken.get_encoding(VOCABULARY)
    # The Rust side has its own copy; this one is for pickling and takes 28 MB.
    encoding._mergeable_ranks = {}
    return encoding.encode_ordinary
