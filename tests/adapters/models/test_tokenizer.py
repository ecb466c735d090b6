"""Token counts: exact offline, and no text can stall or crash them. [tokens.offline]"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.models.tokenizer import SLICE_CHARS, TiktokenTokenizer, slices

TOKENIZER = TiktokenTokenizer()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello world", 2),
        ("The quick brown fox jumps over the lazy dog near the quiet river bank. ", 16),
        ("<|endoftext|>", 7),
        ("\ud800\x00", 2),
    ],
)
def test_counts_are_those_of_the_vocabulary(text: str, tokens: int) -> None:
    """o200k_base counts; special tokens in text are text, surrogates are no error."""
    assert TOKENIZER.count(text) == tokens
    assert TOKENIZER.exact


@pytest.mark.parametrize("unit", [" ", "a", "\n", "\t ", "-", "😀", "中", "9", "\u0301"])
def test_a_megabyte_of_any_text_is_counted_in_time(unit: str) -> None:
    """A megabyte of spaces would crash the library in one piece; slices are counted fast."""
    began = time.perf_counter()
    assert TOKENIZER.count(unit * (1_000_000 // len(unit))) > 0
    assert time.perf_counter() - began < 5


def test_slicing_prose_hardly_changes_its_count() -> None:
    """Slices end after white space, so prose counts as if uncut. [tokens.any-text]"""
    line = "Some ordinary words, and a number 12345 in this line.\n"
    count = SLICE_CHARS * 10 // len(line)
    assert TOKENIZER.count(line * count) == TOKENIZER.count(line) * count


@given(st.text(), st.integers(0, 5), st.sampled_from(["", " ", "\n", "x"]))
def test_slices_are_bounded_and_join_to_the_text(text: str, times: int, unit: str) -> None:
    """Nothing is lost or counted twice. [tokens.any-text]"""
    whole = (text + unit * 9_000) * times
    pieces = list(slices(whole))
    assert "".join(pieces) == whole
    assert all(len(piece) <= SLICE_CHARS for piece in pieces)


@given(st.text())
def test_any_text_can_be_counted(text: str) -> None:
    """No text is an error. [tokens.any-text]"""
    assert 0 <= TOKENIZER.count(text) <= len(text.encode("utf-8", "surrogatepass"))


def test_a_panic_in_the_library_counts_as_bytes() -> None:
    """A crash of the library, which is no Exception, costs precision only."""

    class Panic(BaseException):
        """What the library raises when it crashes."""

    def crash(_: str) -> list[int]:
        raise Panic

    tokenizer = TiktokenTokenizer(lambda: crash)
    assert tokenizer.count("x" * 40) == 10


def test_an_interrupt_is_not_swallowed() -> None:
    """Only crashes are caught. [tokens.any-text]"""

    def interrupt(_: str) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TiktokenTokenizer(lambda: interrupt).count("x")


def test_without_a_vocabulary_bytes_are_counted() -> None:
    """Bytes / 4 is the fallback, with `exact` false. [tokens.method-and-margin]"""
    tokenizer = TiktokenTokenizer(lambda: None)
    assert tokenizer.count("x" * 41) == 10
    assert not tokenizer.exact


def test_threads_may_share_a_tokenizer() -> None:
    """The first counts may come at once; the vocabulary is loaded once."""
    loads: list[int] = []

    def load() -> Callable[[str], list[int]]:
        loads.append(1)
        return lambda text: [0] * len(text)

    tokenizer = TiktokenTokenizer(load)
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(tokenizer.count, ["abc"] * 100))
    assert set(counts) == {3}
    assert len(loads) == 1


@pytest.mark.parametrize("damage", [None, b"not the vocabulary"])
def test_a_missing_or_damaged_vocabulary_is_never_downloaded(
    tmp_path: Path, damage: bytes | None
) -> None:
    """Works offline; the library would fetch what its cache does not hold."""
    if damage is not None:
        (tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790").write_bytes(damage)
    code = (
        "import socket, sys\n"
        "def refuse(*_): raise SystemExit('network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from app.adapters.models.tokenizer import TiktokenTokenizer\n"
        "t = TiktokenTokenizer(); t.load()\n"
        "sys.exit(0 if (t.count('x' * 40), t.exact) == (10, False) else 'counted')\n"
    )
    environment = {**os.environ, "TIKTOKEN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert done.returncode == 0


def test_importing_the_module_loads_nothing() -> None:
    """Neither the library nor LiteLLM comes with an import or a count. [operation.lazy-imports]"""
    code = (
        "import sys; from app.adapters.models.tokenizer import TiktokenTokenizer as T; t = T();"
        "early = 'tiktoken' in sys.modules; t.count('x');"
        "sys.exit(early or 'litellm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 0
