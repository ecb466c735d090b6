"""Every setting of the service, read once from the environment.

1. A field `x` of `Settings` is the variable `CONTEXT_X`. Nothing else reads configuration.
2. A leaf `a.b` of the policy is the variable `CONTEXT_A_B`, laid over the JSON object in
   `CONTEXT_POLICY`, laid over the built-in defaults (decision 22).
3. An empty variable counts as unset. A value that cannot be right is refused at the start,
   with the variable's name.
4. Secrets never show in a repr.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from app.domain.common.errors import ValidationError
from app.domain.common.policy import DEFAULTS, effective, merge
from app.domain.compaction.secret_masking import compile_patterns
from app.domain.compaction.summaries import EXTRACTIVE

PREFIX = "CONTEXT_"
POLICY_VARIABLE = "CONTEXT_POLICY"
CLIENT_VARIABLES = ("CONTEXT_URL", "CONTEXT_API_KEY")
"""Read by those who ask a service, such as the demo, and often set beside its settings."""
DATA_DIR = Path("data")
"""In the working directory, so that `make run` and the commands of a checkout share it."""


_HAS_PORT = re.compile(r":[^\]]*$")


class SettingsError(Exception):
    """A variable holds what cannot be right; the text names it and says what is wanted."""


def _boolean(text: str) -> bool:
    match text.lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off":
            return False
    raise ValueError("must be true or false")


def _number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    wanted = f"from {minimum} to {maximum}" if maximum is not None else f"of at least {minimum}"

    def parse(text: str) -> int:
        digits = text.replace("_", "")
        value = int(digits) if digits.isdecimal() else minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"must be a whole number {wanted}")
        return value

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("must be a number of seconds above 0")
    return value


def _days(text: str) -> timedelta:
    return timedelta(days=_number(1, 36_500)(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def _patterns(text: str) -> tuple[str, ...]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ValueError(f"is not JSON: {exc}") from exc
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a JSON list of strings")
    compile_patterns(value)
    return tuple(value)


def _directory(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _postgres_url(text: str) -> str:
    if not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://")
    hosts = urlsplit(text).netloc.rpartition("@")[2]
    ports = [host.rpartition(":")[2] for host in hosts.split(",") if _HAS_PORT.search(host)]
    ports += parse_qs(urlsplit(text).query).get("port", [])
    if not all(port.isdecimal() and 0 < int(port) < 65_536 for port in ports):
        raise ValueError("must have ports from 1 to 65535")
    return text


def _http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return text


def _store_url(text: str) -> str:
    if not text.startswith(("s3://", "gs://", "az://", "file:///", "memory:///")):
        raise ValueError("must begin with s3://, gs://, az:// or file:///")
    return text


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text.lower()

    return parse


def _setting(
    default: Any, about: str, parse: Callable[[str], Any] = str, *, secret: bool = False
) -> Any:
    return field(default=default, repr=not secret, metadata={"about": about, "parse": parse})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings; each field is the environment variable of its name (rule 1)."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(8080, "port to listen on; 0 takes a free one", _number(0, 65535))
    workers: int = _setting(1, "processes that answer requests", _number(1, 256))
    database_url: str | None = _setting(
        None,
        "PostgreSQL to use, as postgresql://user:password@host/database;"
        " without it a private one is started in the data directory",
        _postgres_url,
        secret=True,
    )
    direct_database_url: str | None = _setting(
        None,
        "the same database past a connection pooler, for migrations and LISTEN",
        _postgres_url,
        secret=True,
    )
    data_dir: Path = _setting(
        DATA_DIR, "directory of the private PostgreSQL, made when missing", _directory
    )
    worker: bool = _setting(
        True,
        "false: the processes that answer requests leave background jobs to other workers",
        _boolean,
    )
    worker_concurrency: int = _setting(4, "background jobs at once per process", _number(1, 256))
    sweep_seconds: float = _setting(
        5.0, "how often a worker looks for background jobs that the queue lost", _seconds
    )
    pool_min_size: int = _setting(1, "database connections kept open per process", _number(0))
    pool_max_size: int = _setting(10, "database connections at most per process", _number(1))
    database_pooler: str = _setting(
        "none",
        "what is at the database's URL: `none` (PostgreSQL, or a pooler in session mode),"
        " `transaction` (a pooler in transaction mode, such as PgBouncer), `prepared` (one that"
        " knows prepared statements, such as PgBouncer from 1.21 on with max_prepared_statements)",
        _one_of("none", "transaction", "prepared"),
    )
    database_connect_seconds: float = _setting(
        4.0, "how long a request waits for a database connection, new or in use by others", _seconds
    )
    database_statement_seconds: float = _setting(
        5.0, "how long the database may take for a statement, waits for locks included", _seconds
    )
    database_long_statement_seconds: float = _setting(
        60.0,
        "the same for the few that grow with a conversation: forks, deletions, indexing for search",
        _seconds,
    )
    log_level: str = _setting(
        "info", "least level that is logged", _one_of("debug", "info", "warning", "error")
    )
    access_log: bool = _setting(
        True, "false: no line in the log for each request that was answered", _boolean
    )
    metrics_token: str | None = _setting(
        None, "what `/metrics` asks for as a Bearer token; unset: nothing", secret=True
    )
    metrics_port: int | None = _setting(
        None,
        "port on which a worker's own process answers `/metrics`; unset: none; 0 takes a free one",
        _number(0, 65535),
    )
    otlp_endpoint: str | None = _setting(
        None,
        "OpenTelemetry collector that traces are sent to, by OTLP over HTTP, as"
        " http://collector:4318; unset: no traces",
        _http_url,
    )
    allow_unauthenticated: bool = _setting(
        False, "true: listen beyond loopback although no API key guards the service", _boolean
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        "comma-separated names by which a service without API keys may be asked for, beside"
        " addresses and names without a dot, which no page can have; `*`: all",
        _names,
    )
    requests_per_minute: int | None = _setting(
        None, "most requests of a tenant in a minute, over all processes", _number(1)
    )
    bytes_per_day: int | None = _setting(
        None, "most bytes that a tenant sends in bodies in a day, over all processes", _number(1)
    )
    storage_bytes: int | None = _setting(
        None,
        "most bytes that a tenant stores in messages, tool outputs and imported snapshots",
        _number(1),
    )
    max_body_bytes: int = _setting(32 * 2**20, "largest JSON body, in bytes", _number(1))
    max_json_values: int = _setting(
        200_000,
        "most JSON values of a body: objects, lists, strings, numbers and so on",
        _number(1),
    )
    max_json_keys: int = _setting(150_000, "most keys of all objects of a JSON body", _number(1))
    max_json_depth: int = _setting(
        100, "how deeply objects and lists of a JSON body may be nested", _number(1, 200)
    )
    max_message_values: int = _setting(
        10_000, "most JSON values of one message that is appended or imported", _number(1)
    )
    max_connections: int = _setting(
        10_000,
        "connections open at once per process, and no more than it may open files; more are"
        " answered with 503",
        _number(1),
    )
    max_head_bytes: int = _setting(
        65_536, "most bytes of the request line and the headers of a request", _number(1024)
    )
    head_seconds: float = _setting(
        10.0, "how long a connection may take until the head of its request is complete", _seconds
    )
    body_stall_seconds: float = _setting(
        30.0,
        "how long the body of a request may come with less than 100 bytes a second",
        _seconds,
    )
    max_blob_bytes: int = _setting(2 * 2**30, "largest upload of a tool output", _number(1))
    blob_store_url: str | None = _setting(
        None,
        "object store that keeps the bytes of tool outputs, as s3://bucket/prefix, gs://, az:// or"
        " file:///; its credentials come from the provider's own variables; unset: PostgreSQL",
        _store_url,
    )
    blob_gc_seconds: float = _setting(
        3600.0, "how often a worker collects tool outputs that nothing refers to", _seconds
    )
    blob_upload_ttl_seconds: float = _setting(
        86_400.0, "how long an upload waits for a message before it is collected", _seconds
    )
    retention_conversation_days: timedelta | None = _setting(
        None,
        "conversations that nobody appended to or changed for so many days are deleted with all"
        " that belongs to them, unless a snapshot holds them; unset: kept for ever",
        _days,
    )
    retention_event_days: timedelta | None = _setting(
        None, "how long events can be read again; unset: for ever", _days
    )
    retention_job_days: timedelta = _setting(
        timedelta(days=30), "how long jobs that have ended can be polled", _days
    )
    retention_key_use_days: timedelta = _setting(
        timedelta(days=365), "how long it is kept how often a key came, and from where", _days
    )
    max_batch: int = _setting(1000, "most messages in one append", _number(1, 1000))
    page_bytes: int = _setting(
        8 * 2**20,
        "largest page of a list, in bytes: it ends early, with its cursor, but never before its"
        " first item",
        _number(1),
    )
    window_cache_bytes: int = _setting(
        64 * 2**20, "memory per process for cached windows; 0 turns the cache off", _number(0)
    )
    events_poll_seconds: float = _setting(
        0.5, "how often followed conversations are looked at for new events", _seconds
    )
    events_keep_alive_seconds: float = _setting(
        15.0, "how often an event stream without events sends a comment", _seconds
    )
    events_max_streams: int = _setting(
        1000, "event streams open at once per process; more are answered with 503", _number(0)
    )
    events_max_streams_per_tenant: int = _setting(
        250, "event streams that a tenant has open at once per process; more are 429", _number(0)
    )
    heavy_requests: int = _setting(
        64,
        "uploads, downloads, searches of outputs, forks, imports and restores at once per process;"
        " more are answered with 503",
        _number(1),
    )
    heavy_requests_per_tenant: int = _setting(
        16, "how many of these a tenant has at once per process; more are 429", _number(1)
    )
    default_model: str | None = _setting(None, "model of conversations and agents that name none")
    summarizer_model: str | None = _setting(
        None, "LiteLLM name of the model that summarises; unset: built-in extractive summaries"
    )
    summarizer_api_base: str | None = _setting(None, "base URL of the summariser's API")
    summarizer_api_key: str | None = _setting(
        None, "key of the summariser's API; unset: the provider's own variable", secret=True
    )
    summarizer_timeout_seconds: float = _setting(
        60.0, "deadline of one call of the summariser", _seconds
    )
    summarizer_deadline_seconds: float = _setting(
        300.0, "deadline of all calls of one compaction, retries and pauses included", _seconds
    )
    summarizer_fallback_models: tuple[str, ...] = _setting(
        (), "comma-separated models to try when the summariser fails", _names
    )
    summarizer_allowed_models: tuple[str, ...] = _setting(
        (),
        "comma-separated models that may summarise; unset: the summariser and its fallbacks",
        _names,
    )
    summarizer_context_window: int = _setting(
        32_000, "window of a summariser that no registry knows, in tokens", _number(1)
    )
    summarizer_breaker_failures: int = _setting(
        5, "failures in a row after which a summariser's model is left alone", _number(1)
    )
    summarizer_breaker_seconds: float = _setting(
        30.0, "how long it is left alone before one call tries it again", _seconds
    )
    summarizer_calls_per_hour: int = _setting(
        1000, "most calls of summarisers per tenant and clock hour", _number(0)
    )
    secret_masking: bool = _setting(
        True, "false: secrets are not masked in what a summariser is sent", _boolean
    )
    secret_patterns: tuple[str, ...] | None = _setting(
        None,
        "JSON list of regular expressions (RE2) of what is masked, a first group being the secret"
        " part; unset: common kinds of keys, tokens and passwords",
        _patterns,
    )
    policy_overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pool_min_size > self.pool_max_size:
            raise SettingsError("CONTEXT_POOL_MIN_SIZE is above CONTEXT_POOL_MAX_SIZE.")
        if self.database_pooler != "none" and self.worker and self.direct_database_url is None:
            raise SettingsError(
                "Background jobs need CONTEXT_DIRECT_DATABASE_URL beside CONTEXT_DATABASE_POOLER:"
                " set it, or CONTEXT_WORKER=false where other processes do them."
            )
        if not self.summarizer_allowed_models and self.summarizer_model:
            allowed = (self.summarizer_model, *self.summarizer_fallback_models)
            object.__setattr__(self, "summarizer_allowed_models", allowed)
        self._refuse_summariser()

    def _refuse_summariser(self) -> None:
        """Raise SettingsError where the policy's model may not summarise."""
        model = self.policy_overrides.get("compaction", {}).get("model")
        allowed = (self.summarizer_model, *self.summarizer_fallback_models)
        if model in (None, EXTRACTIVE, *allowed, *self.summarizer_allowed_models):
            return
        raise SettingsError(
            f"CONTEXT_COMPACTION_MODEL, or compaction.model in {POLICY_VARIABLE}, is {model!r},"
            " which CONTEXT_SUMMARIZER_ALLOWED_MODELS does not allow."
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings; raises SettingsError naming the first wrong variable."""
        overrides = policy_from_env(environ, DEFAULTS)
        _refuse_impossible(environ, overrides)
        values: dict[str, Any] = {"policy_overrides": overrides}
        for name, (about, parse) in _fields().items():
            text = environ.get(variable(name), "").strip()
            if text:
                values[name] = _parsed(variable(name), text, parse, about)
        return cls(**values)


def variable(name: str) -> str:
    """Return the environment variable of a field of `Settings`."""
    return PREFIX + name.upper()


def about(name: str) -> str:
    """Return the one-line description of a field of `Settings`, for help texts and the README."""
    return _fields()[name][0]


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the `CONTEXT_…` variables that no setting reads, most likely misspelt."""
    known = {variable(name) for name in _fields()} | {POLICY_VARIABLE, *CLIENT_VARIABLES}
    known |= {leaf for leaf, _ in policy_variables(DEFAULTS)}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def policy_variables(
    defaults: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each policy leaf's variable with its path: `CONTEXT_A_B`, `("a", "b")`."""
    for key, value in defaults.items():
        if isinstance(value, Mapping) and value:
            yield from policy_variables(value, (*path, key))
        else:
            yield variable("_".join((*path, key))), (*path, key)


def policy_from_env(environ: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy leaves that the environment sets, nested as in JSON (rule 2).

    Raises SettingsError for text that cannot be read; whether the policy could work is
    for `app.domain.common.policy.effective` to say.
    """
    leaves: dict[str, Any] = {}
    for name, path in policy_variables(defaults):
        text = environ.get(name, "").strip()
        if text:
            _set(leaves, path, _leaf(name, text, _get(defaults, path)))
    return merge(_policy_object(environ), leaves)


def _fields() -> dict[str, tuple[str, Callable[[str], Any]]]:
    return {
        entry.name: (entry.metadata["about"], entry.metadata["parse"])
        for entry in fields(Settings)
        if entry.metadata
    }


def _parsed(name: str, text: str, parse: Callable[[str], Any], wanted: str) -> Any:
    try:
        return parse(text)
    except ValueError as exc:
        raise SettingsError(f"{name} ({wanted}) {exc}.") from exc


def _policy_object(environ: Mapping[str, str]) -> dict[str, Any]:
    text = environ.get(POLICY_VARIABLE, "").strip() or "{}"
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise SettingsError(f"{POLICY_VARIABLE} is not JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise SettingsError(f"{POLICY_VARIABLE} must be a JSON object.")
    return value


def _refuse_impossible(environ: Mapping[str, str], overrides: Mapping[str, Any]) -> None:
    try:
        effective(overrides)
    except ValidationError as exc:
        pointer = exc.problems[0].pointer
        name = variable(pointer.strip("/").replace("/", "_"))
        in_object = environ.get(POLICY_VARIABLE) and not environ.get(name)
        source = f"{POLICY_VARIABLE} at {pointer}" if in_object else name
        raise SettingsError(f"{source}: {exc.detail}.") from exc


def _leaf(name: str, text: str, default: object) -> Any:
    match default:
        case bool():
            return _parsed(name, text, _boolean, "a policy default")
        case "auto" if text.isdigit():
            return int(text)
        case str() if not text.startswith("["):
            return text
        case list() | tuple() if not text.startswith("["):
            return list(_names(text))
    try:
        return json.loads(text)
    except ValueError:
        return text


def _get(nested: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    for key in path:
        nested = nested[key]
    return nested


def _set(nested: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for key in path[:-1]:
        nested = nested.setdefault(key, {})
    nested[path[-1]] = value
