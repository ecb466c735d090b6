"""Requests of a life: each is sent again until it is answered, and each answer is judged."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from random import Random
from threading import Event
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from tests.torture.faults import DATABASE, FREEZE, Outages

PATIENCE_SECONDS = 60.0
"""The bound within which everything heals: no request is sent again for longer."""
GRACE_SECONDS = 10.0
"""How long after a fault of the database a request may still be answered with 503."""
TIMEOUT_SECONDS = 45.0
KEPT_OPEN_SECONDS = 1.0
MARK = re.compile(r"zq[a-p]{8}")
"""A word that only one message has."""

Tamper = Callable[[str, str, int, bytes], tuple[int, bytes]]
"""Changes the status and the body of an answer to a method and path."""


class Broken(AssertionError):
    """A promise of the service that an answer breaks."""


class _HungUp(Exception):
    """The connection was closed on purpose, before the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; `resent` says that an earlier try had none, so that it may have had an effect."""

    status: int
    headers: Mapping[str, str]
    raw: bytes
    resent: bool

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return 200 <= self.status < 300

    @property
    def body(self) -> Any:
        """The JSON of the answer."""
        return json.loads(self.raw)

    @property
    def code(self) -> str:
        """The code of the problem, empty for a success."""
        return "" if self.ok else str(self.body["code"])


class Wire:
    """The connections of one thread to all processes."""

    def __init__(
        self, urls: Sequence[str], outages: Outages, tally: Counter[str], tamper: Tamper | None
    ) -> None:
        self._urls = urls
        self._outages = outages
        self._tally = tally
        self._tamper = tamper
        self._open: dict[str, tuple[HTTPConnection, float]] = {}
        self._pause = Event()
        self.key: str | None = None
        """The API key of its requests."""
        self.gone: set[str] = set()
        """Marks that no answer may have any more."""

    def send(
        self,
        chance: Random,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        may_be_unavailable: bool = False,
        is_stream: bool = False,
        raw: bytes | None = None,
    ) -> Answer:
        """Send a request until it is answered.

        With a key, now and then hang up before the answer. `may_be_unavailable`: 503 is an answer,
        as for what needs a model. `is_stream`: a fault of the database may cut the answer off.
        """
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if raw is None and data else {}
        if key is not None:
            headers["Idempotency-Key"] = key
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        started, resent = monotonic(), False
        urls = list(self._urls)
        chance.shuffle(urls)
        patience = chance.uniform(0, 0.03) if key and chance.random() < 0.06 else None
        for attempt in range(10_000):
            url = urls[attempt % len(urls)]
            began = monotonic()
            try:
                answer = self._once(url, method, path, data, headers, patience, resent)
            except _HungUp:
                self._tally["hang-ups"] += 1
            except (OSError, HTTPException) as error:
                self._forget(url)
                self._tally["unanswered"] += 1
                excused = self._outages.met(began, url) or (
                    is_stream and self._outages.met(began, DATABASE)
                )
                if not excused:
                    raise Broken(f"{method} {path}: no answer ({error!r})") from error
            else:
                if answer.status != 503:
                    return answer
                if may_be_unavailable:
                    return answer
                self._tally["503"] += 1
                if not self._outages.met(began, DATABASE, FREEZE, grace=GRACE_SECONDS):
                    raise Broken(f"{method} {path}: 503 without a fault: {answer.raw[:400]!r}")
            patience, resent = None, True
            if monotonic() > started + PATIENCE_SECONDS:
                raise Broken(f"{method} {path}: not answered within {PATIENCE_SECONDS} s")
            self._pause.wait(min(0.5, 0.02 * 2 ** min(attempt, 6)))
        raise AssertionError("unreachable")

    @contextmanager
    def using(self, key: str) -> Iterator[None]:
        """Send with another API key during the block."""
        kept, self.key = self.key, key
        try:
            yield
        finally:
            self.key = kept

    def close(self) -> None:
        """Close all connections."""
        for url in list(self._open):
            self._forget(url)

    def _once(
        self,
        url: str,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        patience: float | None,
        resent: bool,
    ) -> Answer:
        connection = self._connection(url)
        self._tally["requests"] += 1
        connection.request(method, path, data, dict(headers))
        assert connection.sock is not None
        if patience is not None:
            connection.sock.settimeout(patience)
        try:
            response = connection.getresponse()
            connection.sock.settimeout(TIMEOUT_SECONDS) if connection.sock else None
            raw = response.read()
        except TimeoutError as error:
            if patience is None:
                raise
            self._forget(url)
            raise _HungUp from error
        status = response.status
        if self._tamper is not None:
            status, raw = self._tamper(method, path, status, raw)
        self._open[url] = (connection, monotonic())
        given = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(status, given, raw, resent)
        self._judge(method, path, answer)
        return answer

    def _judge(self, method: str, path: str, answer: Answer) -> None:
        """Every answer is one of the contract, and has nothing that was deleted."""
        self._tally["checks"] += 2
        what = f"{method} {path}: {answer.status} {answer.raw[:400]!r}"
        if answer.status >= 500 and answer.status != 503:
            raise Broken(what)
        if answer.status == 503 and "retry-after" not in answer.headers:
            raise Broken(f"503 without Retry-After: {what}")
        if not answer.ok and answer.headers.get("content-type") != "application/problem+json":
            raise Broken(f"an error is no problem document: {what}")
        found = {mark.decode() for mark in re.findall(MARK.pattern.encode(), answer.raw)}
        if back := sorted(found & self.gone):
            raise Broken(f"{method} {path}: deleted text is back: {back[:5]}")

    def _connection(self, url: str) -> HTTPConnection:
        connection, used = self._open.get(url, (None, 0.0))
        if connection is not None and monotonic() < used + KEPT_OPEN_SECONDS:
            return connection
        self._forget(url)
        place = urlsplit(url)
        connection = HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT_SECONDS)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open[url] = (connection, monotonic())
        return connection

    def _forget(self, url: str) -> None:
        connection, _ = self._open.pop(url, (None, 0.0))
        if connection is not None:
            with suppress(OSError):
                connection.close()
