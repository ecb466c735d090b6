"""Prints the lines of code by folder beside their budgets: `python -m release.size`.

1. A line of code has a token that is no comment and no docstring.
2. The budgets are in `pyproject.toml`, in the table `tool.size`: lines of code of a folder, and the
   number of files in `app`. The exit code is 1 above a budget.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
NO_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    }
)


def lines_of_code(text: str) -> int:
    """Return how many lines of a module have code (rule 1)."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for item in body if isinstance(body, list) else ():
            if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
                lines.difference_update(range(item.lineno, (item.end_lineno or 0) + 1))
    return len(lines)


def counted(folder: Path) -> Counter[str]:
    """Return the lines of code below a folder, by the first folder or file inside it."""
    found: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        found[path.relative_to(folder).parts[0]] += lines_of_code(path.read_text("utf-8"))
    return found


def main() -> int:
    """Print the table; the exit code is 1 above a budget."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    budgets: dict[str, int] = project["tool"]["size"]
    sizes = {name: counted(ROOT / name) for name in budgets if name != "files_in_app"}
    files = sum(1 for _ in (ROOT / "app").rglob("*.py"))
    for name, lines in sizes["app"].most_common():
        print(f"  app/{name:22} {lines:8,}")
    totals = {name: found.total() for name, found in sizes.items()} | {"files_in_app": files}
    for name, total in totals.items():
        print(f"{name:28} {total:8,} of {budgets[name]:,}")
    above = [name for name, total in totals.items() if total > budgets[name]]
    if above:
        print(f"Above the budget: {', '.join(above)}.", file=sys.stderr)
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
