"""References in code, tests and documents lead somewhere inside the repository.

A reference is `[log.append-only]`: the id of a promise in `docs/specification/`, or of a rule in
`docs/provider-rules.md`. `[decision 0004]` is a record in `docs/decisions/`. One pair of brackets
may hold several of them, with commas between.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from app.common.environment import variable
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.policy.policy import POLICY_VARIABLES
from app.settings import CLIENT_VARIABLES, Settings, secret_files

ROOT = Path(__file__).parent.parent
SPECIFICATION = ROOT / "docs" / "specification"
PROVIDER_RULES = ROOT / "docs" / "provider-rules.md"

_ID = r"[a-z]+(?:-[a-z]+)*\.[a-z0-9]+(?:-[a-z0-9]+)*"
_REFERENCE = rf"(?:{_ID}|decision \d{{4}})"
REFERENCES = re.compile(rf"\[({_REFERENCE}(?:,\s+{_REFERENCE})*)\](?!\()")
DEFINITION = re.compile(rf"^- \*\*`({_ID})`\*\*", re.MULTILINE)
RULE = re.compile(rf"^- \*\*`({_ID})`\*\* \((?:error|warning)\)", re.MULTILINE)
GOAL = re.compile(r"\.goal\(\s*\"([^\"]+)\"")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
OLD = re.compile(
    r"""
      \((?:[A-M]\d{1,2}|[A-M]|[NX]\d{1,2})\*?(?:[,;][^()]*)?\)  # (A1), (A1, B2), (M)
    | \((?:rules?\ )?H[ABCGX]\b                                  # (rules HA)
    | \b[Dd]ecisions?\ \d{1,3}\b                                 # decision 12
    | \brequirements?\ [A-M]\b
    | \bS[0-4]'s\b
    | \b[a-z]+\.md,\ (?:decision|section)
    | (?m:^)\W*\"\"\"(?:[A-NX]\d{1,2}|M)(?:,\ [A-NX]\d{1,2})*:\ [a-z`]     # "A1: a test"
    """,
    re.VERBOSE,
)
"""Forms of references to documents that are not in the repository."""
FOREIGN = re.compile(r"context_|histogram_|a?sync\w*_|autovacuum_|max_wal_|litellm_|extra_body")
"""Names of metrics, and of PostgreSQL, Prometheus, LiteLLM, SDKs and generated clients."""


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and docstrings of a module, each with its line.

    Comments on consecutive lines are one text.
    """
    joined = _joined(source)
    if not REFERENCES.search(joined) and not OLD.search(joined):
        return
    starts_line = True
    comment, comment_start, comment_end = "", 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            if comment and line > comment_end + 1:
                yield comment_start, comment
                comment = ""
            comment_start = comment_start if comment else line
            comment, comment_end = f"{comment}\n{token.string}" if comment else token.string, line
        elif token.type == tokenize.STRING and starts_line:
            yield line, token.string
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            starts_line = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    if comment:
        yield comment_start, comment


def _joined(text: str) -> str:
    """Return a text with the lines of each paragraph joined, since a reference may be broken."""
    return re.sub(r"(?<!\n)\n[ \t]*(?:#[ \t]?)?(?=\S)", " ", text)


@cache
def _texts() -> tuple[tuple[str, int, str], ...]:
    """Return each text of the repository that may hold references, with its file and line."""
    texts: list[tuple[str, int, str]] = []
    for folder in ("app", "tests", "benchmarks", "migrations", "examples", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix == ".py":
                texts += ((name, line, text) for line, text in _python_texts(path.read_text()))
            elif path.suffix == ".md":
                texts.append((name, 1, CODE.sub("``", path.read_text())))
    for path in sorted(ROOT.glob("*.md")):
        texts.append((path.name, 1, CODE.sub("``", path.read_text())))
    for number, line in enumerate((ROOT / "pyproject.toml").read_text().splitlines(), 1):
        if "  # " in line:
            texts.append(("pyproject.toml", number, line.partition("  # ")[2]))
    return tuple(texts)


@cache
def _promises() -> tuple[str, ...]:
    """Return the ids of the specification, in its order."""
    pages = sorted(SPECIFICATION.glob("*.md"))
    return tuple(name for page in pages for name in DEFINITION.findall(page.read_text()))


@cache
def _provider_rules() -> tuple[str, ...]:
    """Return the id of each provider rule."""
    return tuple(RULE.findall(PROVIDER_RULES.read_text()))


@cache
def _known() -> frozenset[str]:
    """Return everything that a reference may name."""
    records = (ROOT / "docs" / "decisions").glob("[0-9]*.md")
    return frozenset(
        (*_promises(), *_provider_rules(), *(f"decision {record.name[:4]}" for record in records))
    )


@cache
def _references() -> tuple[tuple[str, str], ...]:
    """Return each reference of the repository with the place where it stands."""
    found = [
        (f"{name}:{line}", re.sub(r"\s+", " ", reference))
        for name, line, text in _texts()
        for group in REFERENCES.findall(_joined(text))
        for reference in re.split(r",\s+", group)
    ]
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for group in GOAL.findall(path.read_text()):
            found += ((path.relative_to(ROOT).as_posix(), name) for name in group.split(", "))
    return tuple(found)


def test_each_reference_leads_to_a_promise_a_rule_or_a_record() -> None:
    """A reference names an id of the specification, a provider rule or a decision record."""
    lost = [f"{place}: {name}" for place, name in _references() if name not in _known()]
    assert lost == []


def test_no_reference_leads_out_of_the_repository() -> None:
    """Texts refer to nothing by letters and numbers that only other documents explain."""
    old = [
        f"{name}:{line}: {match.group(0)}"
        for name, line, text in _texts()
        if name != "tests/test_references.py"
        for match in OLD.finditer(_joined(text))
    ]
    assert old == []


def test_each_id_is_defined_once() -> None:
    """No two promises or rules share an id."""
    names = Counter((*_promises(), *_provider_rules()))
    assert [name for name, times in names.items() if times > 1] == []


def test_each_promise_is_named_by_code_or_a_test() -> None:
    """A promise that neither code nor a test names is nobody's."""
    named = {name for place, name in _references() if not place.startswith("docs/")}
    assert [name for name in _promises() if name not in named] == []


def test_each_page_lists_its_areas() -> None:
    """The table of `docs/specification/README.md` has every page with the areas of its ids."""
    table = (SPECIFICATION / "README.md").read_text()
    for page in sorted(SPECIFICATION.glob("*.md")):
        areas = {name.partition(".")[0] for name in DEFINITION.findall(page.read_text())}
        row = next((line for line in table.splitlines() if f"]({page.name}) |" in line), "")
        assert [area for area in sorted(areas) if f"`{area}`" not in row] == [], page.name


def _pages() -> Iterator[tuple[str, str, str]]:
    """Yield each page with its text, and its inline code on one line each."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")):
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        code = (re.sub(r"\s+", " ", part) for part in re.findall(r"`([^`]+)`", text))
        yield path.relative_to(ROOT).as_posix(), text, "\n".join(code)


def test_each_name_of_a_page_exists() -> None:
    """Routes, variables, files and fields that a page names are those of this version."""
    sources = [ROOT / "docker-compose.yml", *(ROOT / "deploy").rglob("*.*")]
    for folder in ("app", "benchmarks", "examples", "openapi", "migrations", "tests"):
        sources += [
            path for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".json")
        ]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    words |= {path.stem for path in sources}
    paths = json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"]
    routes = [f"{verb} {path}" for path, verbs in paths.items() for verb in verbs]
    routes = [re.sub(r"\{\w+\}", "{}", route) for route in routes]
    known = {variable(name) for name in Settings.model_fields} | set(CLIENT_VARIABLES)
    known |= {*secret_files().values(), *POLICY_VARIABLES}
    lost: list[str] = []
    for page, _, code in _pages():
        if page == "CHANGELOG.md":
            continue
        for verb, path in re.findall(r"^(GET|POST|PUT|PATCH|DELETE) ([/…][^ ?\n]*)", code, re.M):
            end = re.sub(r"\{\w+\}", "{}", path).lstrip("…")
            of_verb = (route for route in routes if route.startswith(f"{verb.lower()} "))
            if not any(route.endswith(end) for route in of_verb):
                lost.append(f"{page}: {verb} {path}")
        for name in re.findall(r"\bCONTEXT_[A-Z0-9_]+", code):
            lost += [f"{page}: {name}"] * (name not in known and name not in words)
        for name in re.findall(
            r"^(?:app|tests|docs|benchmarks|examples|deploy)/[\w./-]+$", code, re.M
        ):
            lost += [f"{page}: {name}"] * (not (ROOT / name).exists())
        for name in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", code):
            lost += [f"{page}: {name}"] * (not FOREIGN.match(name) and name not in words)
    assert lost == []


def test_each_format_is_in_the_files_that_list_them() -> None:
    """Those that CONTRIBUTING names; the log and payloads need a provider of each format."""
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = recipe.partition("list each format by its name: ")[2].partition("\n\n")[0]
    texts = {path: (ROOT / path).read_text("utf-8") for path in re.findall("`(.+?)`", listed)}
    lost = [(a, b) for a in texts for b in FormatName if f'"{b}"' not in texts[a]]
    assert lost == [] and len(texts) == 7 and set(PROVIDERS) == set(FormatName)


def test_each_link_leads_to_a_page() -> None:
    """A relative link leads to a file, and to one of its headings."""
    headings = {page: _anchors(text) for page, text, _ in _pages()}
    lost: list[str] = []
    for page, text, _ in _pages():
        for link in re.findall(r"\]\(([^)\s:]+)\)", text):
            name, _, anchor = link.partition("#")
            target = (ROOT / page).parent.joinpath(name).resolve() if name else ROOT / page
            anchors = headings.get(target.relative_to(ROOT).as_posix(), {anchor})
            lost += [f"{page}: {link}"] * (not target.exists() or anchor not in {"", *anchors})
    assert lost == []


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
