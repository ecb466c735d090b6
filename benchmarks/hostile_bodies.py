"""Bodies that are made to take much memory or time."""

from __future__ import annotations

BODY_BYTES = 32 * 2**20 - 4096


def _filled(begin: bytes, item: bytes, end: bytes, size: int = BODY_BYTES) -> bytes:
    """Return a body of about this size that repeats an item, with commas between."""
    count = (size - len(begin) - len(end)) // (len(item) + 1)
    return begin + b",".join([item] * count) + end


def _keys(count: int, value: bytes = b"0") -> bytes:
    return b",".join(b'"k%d":%s' % (place, value) for place in range(count))


def _message(extra: bytes) -> bytes:
    return b'{"messages":[{"role":"user","content":"hi","x":' + extra + b"}]}"


def bodies() -> dict[str, tuple[str, bytes]]:
    """Return the hostile bodies by name, each with its path."""
    append = "/v1/conversations/{id}/messages"
    size = BODY_BYTES
    results = {
        f"32 MB of `{item.decode()}`": (append, _filled(b'{"messages":[', item, b"]}"))
        for item in (b"[]", b"{}", b"0", b'""')
    }
    payload = _filled(b'{"payload":{"messages":[', b"[]", b"]}}")
    results |= {
        "32 MB of `[]` to MCP": ("/mcp", _filled(b'{"x":[', b"[]", b"]}")),
        "32 MB of `[]` to usage": ("/v1/conversations/{id}/usage", payload),
        "32 MB of `[]` to import": ("/v1/snapshots", payload),
        "32 MB of nesting": (append, b"[" * (size // 2) + b"]" * (size // 2)),
        "2.3 million unknown keys": (append, b'{"messages":[],' + _keys(2_300_000) + b"}"),
        "100,000 unknown keys": (append, b'{"messages":[],' + _keys(100_000) + b"}"),
        "100,000 unknown keys to count": ("/v1/tokens/count", b"{" + _keys(100_000) + b"}"),
        "100,000 wrong messages": (
            "/v1/tokens/count",
            b'{"messages":[' + b",".join([b"0"] * 100_000) + b"]}",
        ),
        "100,000 equal keys": (append, b'{"messages":[],' + b",".join([b'"k":0'] * 10**5) + b"}"),
        "one unknown key of 1 MB": (append, b'{"' + b"k" * 10**6 + b'":0}'),
        "a number of 10^6 digits": (append, _message(b"1" * 10**6)),
        "a fraction of 10^6 digits": (append, _message(b"0." + b"1" * 10**6)),
        "32 MB of digits": (append, _message(b"1" * (size - 100))),
        "32 MB of `\\n`": (append, _message(b'"' + b"\\n" * (size // 2 - 50) + b'"')),
        '32 MB of `\\"`': (append, _message(b'"' + b'\\"' * (size // 2 - 50) + b'"')),
        "32 MB of lone surrogates": (append, _message(b'"' + b"\\ud800" * (size // 6 - 50) + b'"')),
        "32 MB that are not UTF-8": (append, _message(b'"' + b"a" * (size - 200) + b'\xff"')),
        "32 MB cut off": (append, _message(b'"' + b"a" * (size - 100))[:-10]),
        "32 MB of `[]` beside a message": (append, _message(_filled(b"[", b"[]", b"]", size - 99))),
        "190,000 values beside a message": (
            append,
            _message(b"[" + b",".join([b"[]"] * 190_000) + b"]"),
        ),
    }
    return results
