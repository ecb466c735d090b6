"""The settings: variables, policy leaves, refusals, secrets. [policy.environment]"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.documents import markdown
from app.common.environment import SettingsError, missing
from app.policy.policy import POLICY_VARIABLES, effective
from app.settings import Settings, secret_files, unknown_variables
from tests.commands import settings_from

ROOT = Path(__file__).parent.parent


def test_defaults() -> None:
    """An empty environment gives the documented defaults. [policy.inheritance]"""
    settings = settings_from({})
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8080, 1)
    assert settings.data_dir == Path("data").absolute()
    assert settings.database_url is None
    assert settings.summarizer_model is None
    assert settings.summarizer_context_window == 32_000
    assert settings.max_body_bytes == 32 * 1024 * 1024
    assert not settings.allow_unauthenticated
    assert settings.policy == {}


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("CONTEXT_PORT", "9000", "port", 9000),
        ("CONTEXT_PORT", "", "port", 8080),
        ("CONTEXT_DATA_DIR", "/srv/data", "data_dir", Path("/srv/data")),
        ("CONTEXT_ALLOW_UNAUTHENTICATED", "TRUE", "allow_unauthenticated", True),
        ("CONTEXT_SUMMARIZER_TIMEOUT_SECONDS", "2.5", "summarizer_timeout_seconds", 2.5),
        ("CONTEXT_SUMMARIZER_FALLBACK_MODELS", "a, b,", "summarizer_fallback_models", ("a", "b")),
        ("CONTEXT_MAX_BODY_BYTES", "1_000_000", "max_body_bytes", 1_000_000),
        ("CONTEXT_DATABASE_URL", "postgresql://h/d", "database_url", "postgresql://h/d"),
        ("CONTEXT_SECRET_PATTERNS", r'["id-\\d+"]', "secret_patterns", (r"id-\d+",)),
        ("CONTEXT_SECRET_PATTERNS", "[]", "secret_patterns", ()),
    ],
)
def test_variable(name: str, text: str, field: str, value: object) -> None:
    """Each setting is read from the variable of its name; an empty one is unset."""
    assert getattr(settings_from({name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CONTEXT_PORT", "http"),
        ("CONTEXT_PORT", "-1"),
        ("CONTEXT_ALLOW_UNAUTHENTICATED", "maybe"),
        ("CONTEXT_SUMMARIZER_TIMEOUT_SECONDS", "nan"),
        ("CONTEXT_LOG_LEVEL", "loud"),
        ("CONTEXT_SECRET_PATTERNS", '{"a": "b"}'),
        ("CONTEXT_SECRET_PATTERNS", '["("]'),
        ("CONTEXT_SECRET_PATTERNS", '["(?=a)b"]'),
        ("CONTEXT_DATABASE_URL", "mysql://h/d"),
        ("CONTEXT_STRATEGY", "none_such"),
        ("CONTEXT_SANDWICH_PRESERVE_TOP", "many"),
        ("CONTEXT_COMPACTION_AUTO", "perhaps"),
    ],
)
def test_wrong_value_is_refused_by_name(name: str, text: str) -> None:
    """A value that cannot be right stops the start and names its variable."""
    with pytest.raises(SettingsError, match=name):
        settings_from({name: text})


def test_variables_of_leaves_are_the_services_policy() -> None:
    """Each leaf has a variable. [policy.inheritance]"""
    environ = {
        "CONTEXT_SANDWICH_PRESERVE_BOTTOM": "2",
        "CONTEXT_SANDWICH_PRESERVE_TOP": "3",
        "CONTEXT_BUDGET_CONTEXT_WINDOW": "32000",
        "CONTEXT_STRATEGY": "sliding_window",
        "CONTEXT_COMPACTION_ENABLED": "off",
    }
    overrides = settings_from(environ).policy
    assert overrides == {
        "strategy": "sliding_window",
        "sandwich": {"preserve_top": 3, "preserve_bottom": 2},
        "budget": {"context_window": 32000},
        "compaction": {"enabled": False},
    }
    assert effective(overrides).sandwich.preserve_top == 3


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
def test_no_text_of_a_leaf_crashes(text: str) -> None:
    """Whatever a leaf's variable holds, the answer is settings or a SettingsError."""
    for name in ("CONTEXT_BUDGET_CONTEXT_WINDOW", "CONTEXT_STRATEGY", "CONTEXT_COMPACTION_AUTO"):
        try:
            settings_from({name: text})
        except SettingsError as exc:
            assert "CONTEXT_" in str(exc)


def test_secrets_stay_out_of_repr() -> None:
    """Keys and passwords never show in a log of the settings."""
    url = "postgresql://u:pw@h/d"
    settings = Settings(summarizer_api_key="sk-1", database_url=url, direct_database_url=url)
    assert not any(secret in repr(settings) for secret in ("sk-1", "pw"))


def test_the_documentation_of_the_settings_is_current() -> None:
    """docs/configuration.md is what `make docs` writes."""
    page = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == markdown()
    assert all(f"- `{'.'.join(path)}` (" in page for path in POLICY_VARIABLES.values())


def test_secrets_come_from_files(tmp_path: Path) -> None:
    """`…_FILE` names a file; the variable itself overrides it. [operation.secret-files]"""
    file = tmp_path / "secret"
    file.write_text(" from a file\n")
    assert set(secret_files()) >= {"database_url", "summarizer_api_key", "metrics_token"}
    environ = {"CONTEXT_METRICS_TOKEN_FILE": str(file)}
    assert settings_from(environ).metrics_token == "from a file"
    assert "from a file" not in repr(settings_from(environ))
    assert settings_from(environ | {"CONTEXT_METRICS_TOKEN": "own"}).metrics_token == "own"
    assert settings_from({"CONTEXT_METRICS_TOKEN_FILE": " "}).metrics_token is None
    unread = {"CONTEXT_POLICY": "{}", "CONTEXT_PORT_FILE": "x"}
    assert unknown_variables(environ | unread) == [*unread]


def test_an_optional_package_is_named() -> None:
    """What is missing is named with the extra that has it, and each extra exists."""
    assert missing("json", "mcp") is None
    assert "context-service[objects]" in str(missing("obstore_that_nobody_has", "objects"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"all", "mcp", "objects"} <= project["optional-dependencies"].keys()
