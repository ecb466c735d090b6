"""Token counts: exact offline, and no text can stall or crash them. [tokens.offline]"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models.tokenizer import SLICE_CHARS, LocalTokenizer, slices

TOKENIZER = LocalTokenizer()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello world", 2),
        ("The quick brown fox jumps over the lazy dog near the quiet river bank. ", 16),
        ("<|endoftext|> I'LL we've 'tis don'T", 14),
        ("1234567 89\r\n\n\t  x = {'a': [1, 2.5]}  \n", 21),
        ("ÀÉÎ straße Ǆ ǅ ʰ e\u0301 \u0301\u0301", 19),
        ("Привет, мир! שלום مرحبا नमस्ते สวัสดี", 15),
        ("中文字漢語、日本語のテキスト 한국어", 11),
        ("😀👩\u200d👩\u200d👧🇩🇪 \u00a0\u2028\u3000\ufeff", 17),
        ("\ud800\x00", 2),
    ],
)
def test_counts_are_those_of_the_vocabulary(text: str, tokens: int) -> None:
    """o200k_base counts; special tokens in text are text, surrogates are no error."""
    assert TOKENIZER.count(text) == tokens


@pytest.mark.parametrize("unit", [" ", "a", "\n", "\t ", "-", "😀", "中", "9", "\u0301"])
def test_a_megabyte_of_any_text_is_counted_in_time(unit: str) -> None:
    """A megabyte of spaces would take quadratic time in one piece; slices are counted fast."""
    began = time.process_time()
    assert TOKENIZER.count(unit * (1_000_000 // len(unit))) > 0
    assert time.process_time() - began < 5


@given(st.text(), st.integers(0, 5), st.sampled_from(["", " ", "\n", "x"]))
def test_any_text_is_counted_in_bounded_slices(text: str, times: int, unit: str) -> None:
    """Nothing is lost or counted twice, and no text is an error. [tokens.any-text]"""
    whole = (text + unit * 9_000) * times
    pieces = list(slices(whole))
    assert "".join(pieces) == whole
    assert all(len(piece) <= SLICE_CHARS for piece in pieces)
    assert 0 <= TOKENIZER.count(whole) <= len(whole.encode("utf-8", "surrogatepass"))


def test_a_panic_in_the_library_costs_precision_only() -> None:
    """Bytes / 4 count where it crashes; no interrupt is lost. [tokens.any-text]"""

    class Panic(BaseException):
        """What a Rust library raises when it crashes, which is no Exception."""

    def crash(text: str) -> int:
        raise KeyboardInterrupt if text == "stop" else Panic

    tokenizer = LocalTokenizer(crash)
    assert tokenizer.count("x" * 41) == 10
    with pytest.raises(KeyboardInterrupt):
        tokenizer.count("stop")


@pytest.mark.parametrize("missing", [False, True])
def test_a_count_is_offline_and_loads_one_library(missing: bool) -> None:
    """Nothing is downloaded; neither an import loads it, nor a count LiteLLM or tiktoken.

    [operation.lazy-imports]
    """
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise SystemExit('network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from app.models.tokenizer import LocalTokenizer\n"
        "assert 'toktok' not in sys.modules\n"
        f"if {missing}: sys.modules['toktok'] = None\n"
        f"assert LocalTokenizer().count('x' * 40) == {10 if missing else 5}\n"
        "sys.exit(bool({'tiktoken', 'litellm'} & {*sys.modules}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
