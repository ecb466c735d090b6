"""Sessions generated from a seed: an agent's turns with planted statements, in five rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.fidelity.planted.planting import Planter
from benchmarks.fidelity.planted.todos import LIST_TOOLS, TOOLS, calls_for
from benchmarks.fidelity.planted.wording import Plant, Wording

ROUND_CHARS = (44_000, 14_000, 14_000, 14_000, 14_000)
"""How long the history of each round is; about four characters are a token."""
QUIET_TURNS = 3
"""The last turns of a session hold no statement: a strategy that keeps them gets none for that."""
TODO_EVERY = 6
OPEN_TODOS = 4

Message = dict[str, Any]


@dataclass(slots=True)
class Session:
    """A session; of each of `chains`, the last statement holds at its end."""

    name: str
    rounds: list[list[Message]] = field(default_factory=list)
    chains: list[list[Plant]] = field(default_factory=list)
    first_request: str = ""
    todos: list[str] = field(default_factory=list)
    sections: list[dict[str, Any]] = field(default_factory=list)

    @property
    def plants(self) -> list[Plant]:
        """The statements that hold at the end."""
        return [chain[-1] for chain in self.chains]


def generated(wording: Wording, seed: str) -> Session:
    """Return the session of a seed."""
    return _Writer(wording, seed).session()


class _Writer:
    def __init__(self, wording: Wording, seed: str) -> None:
        self._planter = Planter(wording, seed)
        self._words, self._random = wording, self._planter.random
        self._draw = self._planter.deck.draw
        self._root = self._random.choice(wording.roots)
        self._calls = 0
        self._session = Session(seed)
        self._todo_tool = self._random.choice(TOOLS)
        self._list: list[tuple[str, str]] = []
        section = {"name": "system", "content": "You are a careful agent with tools."}
        self._session.sections.append(section)

    def session(self) -> Session:
        """Write the turns, and put the statements into them in order."""
        session = self._session
        turns: list[list[Message]] = []
        bounds = []
        for chars in ROUND_CHARS:
            written = 0
            while written < chars:
                turns.append(list(self._turn(len(turns))))
                written += sum(len(json.dumps(raw, ensure_ascii=False)) for raw in turns[-1])
            bounds.append(len(turns))
        session.chains = self._planter.chains()
        plant_in(turns[: len(turns) - QUIET_TURNS], session.chains, self._random)
        session.todos = [text for text, state in self._list if state != "completed"]
        starts = (0, *bounds[:-1])
        for start, end in zip(starts, bounds, strict=True):
            session.rounds.append([message for turn in turns[start:end] for message in turn])
        session.first_request = turns[0][0]["content"]
        return session

    def _turn(self, number: int) -> Iterator[Message]:
        words, random = self._words, self._random
        stem = random.choice(words.stems)
        if number == 0:
            yield _user(self._draw(words.first_request).format(stem=stem))
        else:
            yield from self._asked(stem)
        path = f"{random.choice(words.folders)}/{stem}.py"
        for _ in range(random.randint(1, 3)):
            yield from self._worked(stem, path)
        if number % TODO_EVERY == 1:
            yield from self._planned()
        yield {"role": "assistant", "content": self._draw(words.endings).format(path=path)}

    def _asked(self, stem: str) -> Iterator[Message]:
        words, random = self._words, self._random
        dice = random.random()
        if dice < 0.15:
            yield _user(self._draw(words.harness).format(path=f"{self._root}/README.md"))
        if dice < 0.3:
            yield _user(self._draw(words.acknowledgements))
            return
        asked = self._draw(words.requests).format(stem=stem)
        if random.random() < 0.4:
            asked = f"{asked} {self._draw(words.small_talk)}"
        if random.random() < 0.15:
            lines = "\n".join(random.choice(words.log_lines) for _ in range(random.randint(6, 20)))
            asked = f"{asked}\n\n{lines}"
        yield _user(asked)

    def _worked(self, stem: str, path: str) -> Iterator[Message]:
        """Yield a call with its result."""
        random = self._random
        given = f"{self._root}/{path}" if random.random() < 0.5 else path
        dice = random.random()
        if dice < 0.35:
            yield from self._call("Read", {"file_path": given}, self._source(stem))
        elif dice < 0.55:
            lines = [f"{path}:{n}: {stem}_{n} = {stem}({n})" for n in range(random.randint(4, 16))]
            yield from self._call("Grep", {"pattern": stem}, "\n".join(lines))
        elif dice < 0.72:
            edit = {"file_path": given, "old_string": f"{stem}(1)", "new_string": f"{stem}(2)"}
            yield from self._call("Edit", edit, f"The file {given} has been updated.")
        elif dice < 0.92:
            log = [random.choice(self._words.log_lines) for _ in range(random.randint(5, 25))]
            passed = f"{random.randint(3, 90)} passed in {random.randint(1, 40)}.2 s"
            yield from self._call("Bash", {"command": "make test"}, "\n".join([*log, passed]))
        else:
            mark = self._mark("x")
            failure = self._draw(self._words.failures).format(stem=stem, mark=mark)
            result = f"Exit code 1\n{failure}"
            yield from self._call("Bash", {"command": f"make check-{stem}"}, result)

    def _source(self, stem: str) -> str:
        random, words = self._random, self._words
        lines = []
        for number in range(random.randint(2, 6)):
            lines += [
                f"def {stem}_{number}(value: int) -> int:",
                f'    """Return the {stem} of a value."""',
                f"    total = value * {number} + len(str(value))",
                f"    return total if total > {random.randint(0, 99)} else -total",
                "",
            ]
        if random.random() < 0.5:
            mark = self._mark("e")
            lines.insert(
                random.randrange(len(lines)), "    " + _fill(words.decoy_errors, mark, random)
            )
        if random.random() < 0.5:
            mark = self._mark("d")
            lines.insert(random.randrange(len(lines)), _fill(words.decoy_decisions, mark, random))
        return "\n".join(lines)

    def _planned(self) -> Iterator[Message]:
        """Yield the calls that bring the todo list up to date."""
        before, draw = self._list, self._draw
        done = [(text, "completed") for text, _ in before]
        new = [(draw(self._words.todos), "pending") for _ in range(OPEN_TODOS - 1)]
        current = (draw(self._words.todos), "in_progress")
        self._list = [*(done[-2:] if self._todo_tool in LIST_TOOLS else done), current, *new]
        for name, given, result in calls_for(self._todo_tool, before, self._list):
            yield from self._call(name, given, result)

    def _call(self, name: str, given: dict[str, Any], result: str) -> Iterator[Message]:
        self._calls += 1
        call_id = f"call_{self._calls}"
        function = {"name": name, "arguments": json.dumps(given)}
        call = {"id": call_id, "type": "function", "function": function}
        said = self._draw(self._words.narrations) or None
        yield {"role": "assistant", "content": said, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": call_id, "content": result}

    def _mark(self, letter: str) -> str:
        return f"{letter}{self._random.randrange(16**5, 16**6):x}"


def plant_in(
    turns: Sequence[list[Message]], chains: Sequence[Sequence[Plant]], random: Random
) -> None:
    """Put the statements into messages of their authors.

    The statements of one subject go into different turns, in order.
    """
    for chain in chains:
        places = sorted(random.sample(range(len(turns)), len(chain)))
        for place, plant in zip(places, chain, strict=True):
            _put(turns[place], plant, random, is_first=place == 0)


def _put(turn: list[Message], plant: Plant, random: Random, *, is_first: bool) -> None:
    places = [n for n, raw in enumerate(turn) if raw["role"] == plant.author]
    message = turn[places[-1]] if places else {}
    text = message.get("content")
    if plant.author == "assistant" and places and (text is None or isinstance(text, str)):
        message["content"] = _joined(text, plant.text, random) if text else plant.text
    elif plant.author == "assistant":
        turn.append({"role": "assistant", "content": plant.text})
    elif is_first or not isinstance(text, str) or _is_machine(text):
        turn.insert(places[-1] + 1 if places else 0, _user(plant.text))
    else:
        message["content"] = _joined(text, plant.text, random)


def _joined(text: str, statement: str, random: Random) -> str:
    """Return the text with the statement before it, after it, or in its middle."""
    dice = random.random()
    if dice < 0.3:
        return f"{statement} {text}"
    if dice < 0.6 and ". " in text and "\n" not in text:
        head, _, rest = text.partition(". ")
        return f"{head}. {statement} {rest}"
    return f"{text}\n\n{statement}" if "\n" in text or dice > 0.8 else f"{text} {statement}"


def _is_machine(text: str) -> bool:
    return text.startswith(("<", "[Request"))


def _fill(templates: Sequence[str], mark: str, random: Random) -> str:
    return random.choice(templates).format(mark=mark)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
