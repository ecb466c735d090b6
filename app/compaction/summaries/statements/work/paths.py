"""Paths of files as a summary names them: relative to the folder of the work, and each once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

MIN_ROOT_SHARE = 0.9
MIN_ROOT_DEPTH = 2
_ABSOLUTE = re.compile(r"^(?:/|~|[A-Za-z]:/)")


def relative_paths(
    files: Mapping[str, bool], root: str | None
) -> tuple[str | None, dict[str, bool]]:
    """Return the root of most absolute paths, and all paths without it, each once.

    `files` says of each path whether it was edited; a file that was edited under one of its names
    was edited. `root` is the one found before, None without.
    """
    slashed = {path.replace("\\", "/"): edits for path, edits in files.items()}
    absolute = [path for path in slashed if _ABSOLUTE.match(path)]
    root = root or _shared_root(slashed, absolute) or _common_root(absolute)
    known: dict[str, bool] = {}
    for path, edits in slashed.items():
        name = _relative(path, root)
        edited = edits or known.pop(name, False)
        known[name] = edited
    return root, known


def _relative(path: str, root: str | None) -> str:
    if root is not None:
        prefix = root.rstrip("/") + "/"
        if path.lower().startswith(prefix.lower()):
            path = path[len(prefix) :]
    while path.startswith("./"):
        path = path[2:]
    return path


def _shared_root(paths: Iterable[str], absolute: Iterable[str]) -> str | None:
    """Return the folder under which most relative paths are those of absolute ones."""
    names = {path.removeprefix("./") for path in paths if not _ABSOLUTE.match(path)}
    found: Counter[str] = Counter()
    for path in absolute:
        folders = path.split("/")
        for depth in range(2, len(folders)):
            if "/".join(folders[depth:]) in names:
                found["/".join(folders[:depth])] += 1
    return found.most_common(1)[0][0] if found else None


def _common_root(paths: Iterable[str]) -> str | None:
    """Return the deepest folder that holds most of the absolute paths."""
    counts: Counter[str] = Counter()
    total = 0
    for path in paths:
        total += 1
        folders = path.split("/")[:-1]
        counts.update("/".join(folders[:depth]) for depth in range(1, len(folders) + 1))
    wanted = max(1.0, MIN_ROOT_SHARE * total)
    roots = [
        folder
        for folder, count in counts.items()
        if count >= wanted and folder.count("/") >= MIN_ROOT_DEPTH
    ]
    return max(roots, key=lambda folder: folder.count("/"), default=None)
