"""The settings of the service, read from environment variables.

1. Field `x` of `Settings` is the variable `CONTEXT_X`.
2. Leaf `a.b` of `policy` is the variable `CONTEXT_A_B`, which overrides the built-in default.
3. An empty or blank variable counts as unset.
4. Errors name the variable and never contain its value. Secrets are not part of a repr.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from app.common.environment import PREFIX, SettingsError, missing, one_line, split, variable
from app.common.errors import ValidationError
from app.policy.policy import POLICY_VARIABLES, effective, policy_from_env

CLIENT_VARIABLES = ("CONTEXT_URL", "CONTEXT_API_KEY")
"""Read by clients such as the demo, and often set in the same environment as the service."""


def _decode(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as exc:
        raise ValueError(f"not valid JSON: {exc}") from exc


def _compiles(patterns: tuple[str, ...]) -> tuple[str, ...]:
    from app.compaction.summaries.secret_masking import compile_patterns

    compile_patterns(patterns)
    return patterns


def _postgres_url(url: str) -> str:
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://")
    try:
        urlsplit(url)
    except ValueError:  # its message can contain the password
        raise ValueError("must be a valid URL") from None
    return url


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Days = Annotated[int, Field(ge=1, le=36_500)]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Processes = Annotated[int, Field(ge=1, le=256)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Names = Annotated[tuple[str, ...], BeforeValidator(split)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_decode), AfterValidator(_compiles)]
Directory = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
Secret = Annotated[str | None, Field(repr=False)]
SecretUrl = Annotated[Annotated[str, AfterValidator(_postgres_url)] | None, Field(repr=False)]
BlobStoreUrl = Annotated[str, Field(pattern="^(s3://|gs://|az://|file:///|memory:///)")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)]
Pooler = Annotated[Literal["none", "transaction", "prepared"], BeforeValidator(_lower)]


class Group(BaseModel):
    """Settings that belong together; the text below a setting describes it."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ServerSettings(Group):
    """HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8080
    """Port to listen on; 0 selects a free port."""
    workers: Processes = 1
    """Processes that answer requests."""
    allow_unauthenticated: bool = False
    """Listen on other addresses than loopback while no API key exists."""
    allowed_hosts: Names = ()
    """Hosts accepted while no API key exists, besides IP addresses and names without a dot or
    below `localhost`; `*` accepts all.
    """
    max_connections: Positive = 10_000
    """Open connections per process; further requests receive 503."""


class DatabaseSettings(Group):
    """Database."""

    database_url: SecretUrl = None
    """`postgresql://user:password@host/database`; unset: a private PostgreSQL in the data
    directory.
    """
    direct_database_url: SecretUrl = None
    """URL of the same database without a pooler, for migrations."""
    data_dir: Directory = Path("data")
    """Directory of the private PostgreSQL, relative to the working directory; created if missing.
    """
    database_pooler: Pooler = "none"
    """Pooler behind the database URL: `none` (or session mode), `transaction` (transaction mode),
    `prepared` (with prepared statements as well: PgBouncer 1.21 or newer with
    max_prepared_statements).
    """
    pool_max_size: Positive = 10
    """Database connections per process."""
    database_statement_seconds: Seconds = 5.0
    """Statement timeout, waits for locks included."""


class WorkerSettings(Group):
    """Background jobs."""

    worker: bool = True
    """Processes that answer requests also run background jobs; false: only `context-service worker`
    does.
    """
    worker_concurrency: Processes = 4
    """Concurrent background jobs per process."""
    poll_seconds: Seconds = 1.0
    """Interval at which a worker looks for work."""


class ObservabilitySettings(Group):
    """Logs and metrics."""

    log_level: LogLevel = "info"
    """Minimum level of log records: `debug`, `info`, `warning` or `error`."""
    access_log: bool = True
    """Log each request."""
    metrics_token: Secret = None
    """Bearer token that `/metrics` requires; unset: none."""
    metrics_port: Port | None = None
    """Port of a worker's `/metrics`; 0 selects a free port; unset: none."""


class LimitSettings(Group):
    """Limits of tenants and of requests."""

    requests_per_minute: Positive | None = None
    """Requests per tenant, minute and process; unset: no limit."""
    max_body_bytes: Positive = 32 * 2**20
    """Largest JSON body."""
    page_bytes: Positive = 8 * 2**20
    """Largest page of a list, which has at least one item."""
    heavy_requests: Positive = 32
    """Slots per process. Uploads, downloads, searches of outputs, lists, and bodies over 64 KiB
    take one, and one more for each 4 MiB; forks, exports, imports and full contents take several.
    Who gets none within 10 s receives 429 if its tenant has too many, else 503.
    """
    events_max_streams: Count = 1000
    """Event streams per process; more receive 503, or 429 if their tenant has a quarter."""
    payload_cache_bytes: Count = 32 * 2**20
    """Memory per process for rendered payloads; 0: no cache."""


class StorageSettings(Group):
    """Tool outputs and retention."""

    max_blob_bytes: Positive = 2 * 2**30
    """Largest upload of a tool output."""
    blob_store_url: BlobStoreUrl | None = None
    """Object store for tool outputs: `s3://bucket/prefix`, `gs://`, `az://` or `file:///`, with
    credentials in the provider's own variables; unset: PostgreSQL.
    """
    blob_upload_ttl_seconds: Seconds = 86_400.0
    """How long an upload is kept that no message refers to."""
    retention_event_days: Days | None = None
    """How long events can be read; unset: forever."""


class ModelSettings(Group):
    """Models and summaries."""

    default_model: str | None = None
    """Model of conversations and agents that name none."""
    summarizer_model: str | None = None
    """LiteLLM name of the summariser; unset: built-in extractive summaries."""
    summarizer_api_base: str | None = None
    """Base URL of the summariser's API."""
    summarizer_api_key: Secret = None
    """Key of the summariser's API; unset: the provider's own variable."""
    summarizer_timeout_seconds: Seconds = 60.0
    """Timeout of one call of the summariser."""
    summarizer_deadline_seconds: Seconds = 300.0
    """Time limit of all calls of a compaction, retries included."""
    summarizer_fallback_models: Names = ()
    """Models to try when the summariser fails."""
    summarizer_allowed_models: Names = ()
    """Summarisers that a policy may select beside the summariser and its fallbacks."""
    summarizer_context_window: Positive = 32_000
    """Tokens of the summariser's context window, if the registry lacks it."""
    summarizer_calls_per_hour: Count = 1000
    """Calls of the summariser per tenant and clock hour, over all processes."""
    secret_patterns: Patterns | None = None
    """JSON list of regular expressions (RE2): what one matches, or its first group, is masked in
    texts for a summariser; `[]` masks nothing; unset: common formats of keys, tokens and passwords.
    """


class Environment(EnvSettingsSource):
    """Reads the environment; blank variables count as unset."""

    def __call__(self) -> dict[str, Any]:
        """Return the values by field, with the policy of `policy_from_env`."""
        values = {name: text.strip() for name, text in super().__call__().items() if text.strip()}
        files = {name: os.environ.get(file, "").strip() for name, file in secret_files().items()}
        secrets = {
            name: _secret(name, file) for name, file in files.items() if file and name not in values
        }
        return secrets | values | {"policy": policy_from_env(os.environ)}


def secret_files() -> dict[str, str]:
    """Return the secret settings, and the variables that name files with their values."""
    fields = Settings.model_fields.items()
    return {name: f"{variable(name)}_FILE" for name, field in fields if not field.repr}


def _secret(name: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise SettingsError(f"{variable(name)}_FILE cannot be read: {file}: {reason}.") from exc


class Settings(
    ServerSettings,
    DatabaseSettings,
    WorkerSettings,
    ObservabilitySettings,
    LimitSettings,
    StorageSettings,
    ModelSettings,
    BaseSettings,
):
    """All settings. `Settings()` reads the environment; arguments override it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, enable_decoding=False, frozen=True, hide_input_in_errors=True
    )

    policy: Mapping[str, Any] = Field(default_factory=dict)
    """Default policy, from the variables of its leaves."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read variables only: no dotenv files and no secrets directory."""
        return init_settings, Environment(settings_cls)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_extras()
        self._check_policy()
        return self

    def _check_extras(self) -> None:
        """Raise for a setting whose libraries are not installed."""
        if self.blob_store_url is not None and (needed := missing("obstore", "objects")):
            raise ValueError(f"{variable('blob_store_url')} needs {needed}")

    def _check_policy(self) -> None:
        try:
            model = effective(self.policy).compaction.model
        except ValidationError as exc:
            pointer = exc.problems[0].pointer
            name = variable(pointer.strip("/").replace("/", "_"))
            raise ValueError(f"{name}: {exc.detail}") from exc
        usable = (self.summarizer_model, *self.summarizer_fallback_models)
        if model in (None, *usable, *self.summarizer_allowed_models):
            return
        from app.models.usage import EXTRACTIVE

        if model != EXTRACTIVE:
            raise ValueError(
                f"CONTEXT_COMPACTION_MODEL is {model!r}, which CONTEXT_SUMMARIZER_ALLOWED_MODELS"
                " does not allow"
            )


GROUPS: tuple[Any, ...] = Settings.__bases__[:-1]
"""The groups of settings in the order of the documentation."""


def read_settings() -> Settings:
    """Read the environment; raises SettingsError with a line for each invalid variable."""
    try:
        return Settings()
    except pydantic.ValidationError as exc:
        raise SettingsError("\n".join(map(_explain, exc.errors()))) from None


def _explain(error: Mapping[str, Any]) -> str:
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return f"{message}."
    name = error["loc"][0]
    return f"{variable(name)} is invalid: {message}. It sets: {description_of(name)}"


def description_of(name: str) -> str:
    """Return the description of a field of `Settings`."""
    return one_line(Settings.model_fields[name].description)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the `CONTEXT_…` variables that no setting reads, such as misspelt ones."""
    known = {variable(name) for name in Settings.model_fields if name != "policy"}
    known |= {*secret_files().values(), *POLICY_VARIABLES, *CLIENT_VARIABLES}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
