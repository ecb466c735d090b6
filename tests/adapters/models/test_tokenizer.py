"""Token counts: exact offline, and no text can stall or crash them. [tokens.offline]"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models import tokenizer as tokenizer_module
from app.models.tokenizer import SLICE_CHARS, VOCABULARY, TiktokenTokenizer, needs_reference, slices

TOKENIZER = TiktokenTokenizer()
REFERENCE = TiktokenTokenizer(tokenizer_module.load_reference)
"""The tokenizer that counts by tiktoken alone."""

spaces = st.sampled_from(" \t\n\r\x0b\x0c\x85\xa0\u1680\u2000\u2028\u2029\u202f\u3000\u200b\ufeff")
pieces = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(max_codepoint=0x7F), max_size=12),
    st.text(spaces, max_size=12),
    st.text(st.sampled_from("'sStTrReEvVmMlLdD\u017f\u2019 \u212a"), max_size=12),
    st.text(st.sampled_from("0123456789\u0663\u09ea"), max_size=12),
    st.text(st.sampled_from('!?.,;:/\\-_=+*&^%$#@(){}[]<>|~`"\n'), max_size=12),
    st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), max_size=12),
    st.text(st.characters(min_codepoint=0x1F300, max_codepoint=0x1FAFF), max_size=6),
    st.text(
        st.sampled_from("\u200d\ufe0f\U0001f3fd\U0001f1e9\U0001f1ea\u0301\u094d\u0928"), max_size=8
    ),
    st.text(st.characters(categories=["Cs"]), max_size=4),
    st.text(
        st.characters(categories=["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd"]), max_size=12
    ),
    st.sampled_from(["<|endoftext|>", "\U000323b0", "\u088f", "\x00", "\ud83d", "\ude00"]),
)
texts = st.lists(
    st.tuples(pieces, st.integers(1, 40)).map(lambda each: each[0] * each[1]), max_size=8
).map("".join)


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


@given(texts)
def test_counts_are_those_of_tiktoken(text: str) -> None:
    """The faster library changes no count. [tokens.method-and-margin]"""
    assert TOKENIZER.count(text) == REFERENCE.count(text)


def test_each_character_has_the_class_that_tiktoken_knows() -> None:
    """A character's class decides where words are split; other classes need the reference.

    Of the large blocks of ideographs and syllables every seventh is tried.
    """
    contexts = "{0}'L a'{0}b A{0}b 1{0}2 .{0}\n \n {0}\u094d\u0928 a'l{0} {0}/\n"
    large = (range(0x3400, 0xA000), range(0xAC00, 0xE000), range(0xE000, 0xF900))
    codes = [code for code in range(0x20000) if not any(code in block for block in large)]
    codes += [code for block in (*large, range(0x20000, 0x40000)) for code in block[::7]]
    for code in codes:
        text = contexts.format(chr(code))
        if not needs_reference(text):
            assert TOKENIZER.count(text) == REFERENCE.count(text), f"{code:x}"


def test_both_vocabularies_are_equal() -> None:
    """Each token is the same bytes in both libraries."""
    import tiktoken
    import toktok

    REFERENCE.load()
    encoding = tiktoken.get_encoding(VOCABULARY)
    assert sorted(toktok._encoding(VOCABULARY).token_byte_values()) == sorted(
        encoding.token_byte_values()
    )


@pytest.mark.parametrize("toktok", ["missing", "wrong", "panics"])
def test_without_the_faster_library_tiktoken_counts(
    toktok: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is missing or miscounts a sample is not used."""

    class Panic(BaseException):
        """What a Rust library raises when it crashes."""

    class Wrong:
        """A tokenizer with another vocabulary."""

        def count(self, text: str) -> int:
            if toktok == "panics":
                raise Panic
            return len(text)

    package = type("Package", (), {"_encoding": lambda _: Wrong()})
    monkeypatch.setitem(sys.modules, "toktok", None if toktok == "missing" else package)
    monkeypatch.setattr(tokenizer_module, "load_fast", tokenizer_module.load_fast.__wrapped__)
    subject = TiktokenTokenizer()
    assert subject.count("hello world") == 2
    assert subject.exact


@pytest.mark.parametrize("unit", [" ", "a", "\n", "\t ", "-", "😀", "中", "9", "\u0301"])
def test_a_megabyte_of_any_text_is_counted_in_time(unit: str) -> None:
    """A megabyte of spaces would crash the library in one piece; slices are counted fast."""
    began = time.process_time()
    assert TOKENIZER.count(unit * (1_000_000 // len(unit))) > 0
    assert time.process_time() - began < 5


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


def test_a_panic_in_a_library_costs_precision_only() -> None:
    """The reference counts where the faster one crashes, bytes where both do; no interrupt is lost.

    [tokens.any-text, tokens.method-and-margin]
    """

    class Panic(BaseException):
        """What a Rust library raises when it crashes, which is no Exception."""

    def crash(text: str) -> list[int]:
        raise KeyboardInterrupt if text == "stop" else Panic

    assert tokenizer_module.checked_count(crash)("hello world") == 2  # type: ignore[arg-type]
    tokenizer = TiktokenTokenizer(lambda: crash)
    assert tokenizer.count("x" * 40) == 10
    with pytest.raises(KeyboardInterrupt):
        tokenizer.count("stop")
    without = TiktokenTokenizer(lambda: None)
    assert without.count("x" * 41) == 10
    assert not without.exact


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
        "sys.modules['toktok'] = None\n"
        "from app.models.tokenizer import TiktokenTokenizer\n"
        "t = TiktokenTokenizer(); t.load()\n"
        "sys.exit(0 if (t.count('x' * 40), t.exact) == (10, False) else 'counted')\n"
    )
    environment = {**os.environ, "TIKTOKEN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert done.returncode == 0


def test_importing_the_module_loads_nothing() -> None:
    """Neither a library comes with an import, nor tiktoken or LiteLLM with a count.

    [operation.lazy-imports]
    """
    code = (
        "import sys; from app.models.tokenizer import TiktokenTokenizer as T; t = T();"
        "early = {'tiktoken', 'toktok'} & {*sys.modules}; t.count('x');"
        "sys.exit(bool(early or {'tiktoken', 'litellm'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 0
