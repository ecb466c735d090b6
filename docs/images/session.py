"""Draws `session.svg`, one recorded session before and after: `python docs/images/session.py FILE`.

The first conversation of the file is replayed as `context-service demo` does, in a window of 64 000
tokens, by the service at CONTEXT_URL. All figures in the picture are those of this run.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

from app.cli.demo import MODEL, Client, Lane, read_traces, replay
from tests.replay import Tally, judge_log, read_messages

WINDOW, MOST = 64_000, 250_000
WIDTH, HEIGHT, TOP = 400, 190, 56
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .head { font-size: 15px; font-weight: 600 }
.big { font-size: 20px; font-weight: 600 } .soft { fill: #59636e } .line { stroke: #59636e }
.cached { fill: #54aeff } .new { fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .soft { fill: #9198a1 } .line { stroke: #9198a1 }
.cached { fill: #1f6feb } .new { fill: #f0883e } }
"""


def calls(client: Client, lane: Lane) -> list[tuple[int, int]]:
    """Return what each call sent and had cached, in order."""
    answer = client.send("GET", f"{lane.path}/usage/reports?limit=1000")
    found = [report["token_usage"] for report in reversed(answer.body["data"])]
    return [
        (each["input_tokens"] + each["cache_read_tokens"], each["cache_read_tokens"])
        for each in found
    ]


def panel(x: int, title: str, series: list[tuple[int, int]]) -> str:
    """Draw the calls of one way as two areas."""

    def area(name: str, values: list[int]) -> str:
        step = WIDTH / (len(values) - 1)
        points = [
            f"{x + step * number:.1f},{TOP + HEIGHT * (1 - value / MOST):.1f}"
            for number, value in enumerate(values)
        ]
        base = TOP + HEIGHT
        return (
            f'<polygon class="{name}" points="{x},{base} {" ".join(points)} {x + WIDTH},{base}"/>'
        )

    limit = TOP + HEIGHT * (1 - WINDOW / MOST)
    return "\n".join(
        (
            f'<text class="head" x="{x}" y="20">{title}</text>',
            area("new", [sent for sent, _ in series]),
            area("cached", [cached for _, cached in series]),
            f'<line class="line" x1="{x}" x2="{x + WIDTH}" y1="{limit}" y2="{limit}"'
            ' stroke-dasharray="5 4"/>',
            f'<text class="soft" x="{x + 6}" y="{limit - 6}">64k tokens</text>',
        )
    )


def figures(x: int, lane: Lane) -> str:
    """Write the figures of one way in a row, each above what it is."""
    said = (
        (f"{lane.largest:,}", "tokens at most"),
        (f"{lane.cached / lane.sent:.1%}", "can be cached"),
        (f"${lane.cost:.2f}", "for all input"),
    )
    return "\n".join(
        f'<text class="big" x="{x + 135 * n}" y="{TOP + HEIGHT + 34}">{figure}</text>'
        f'<text class="soft" x="{x + 135 * n}" y="{TOP + HEIGHT + 53}">{what}</text>'
        for n, (figure, what) in enumerate(said)
    )


def main(path: Path) -> None:
    """Replay, and write the picture beside this script."""
    trace, seen = read_traces(path)[0], Tally()
    with closing(Client(os.environ.get("CONTEXT_URL", "http://127.0.0.1:8080"))) as client:
        ours, _, whole = replay(client, trace, WINDOW)
        read = read_messages(client, ours.path.rpartition("/")[2])
        judge_log(trace.name, trace.messages, read, seen)
        if seen.altered or ours.refused or whole.refused:
            sys.exit(f"{seen.altered} {ours.refused} {whole.refused}")
        drawn = [
            panel(10, "Before: the whole log at each call", calls(client, whole)),
            panel(450, "After: the Context Service", calls(client, ours)),
        ]
    drawn += [
        figures(10, whole),
        figures(450, ours),
        f'<text class="soft" x="450" y="38">Nothing is lost: all {seen.read_back:,} messages are'
        " read back.</text>",
        f'<text class="soft" x="10" y="38">{len(trace.messages):,} messages,'
        f" {ours.builds} calls of {MODEL}.</text>",
        f'<rect class="cached" x="10" y="{TOP + HEIGHT + 72}" width="12" height="12"/>'
        f'<text class="soft" x="28" y="{TOP + HEIGHT + 83}">can be read from the cache</text>'
        f'<rect class="new" x="240" y="{TOP + HEIGHT + 72}" width="12" height="12"/>'
        f'<text class="soft" x="258" y="{TOP + HEIGHT + 83}">sent anew</text>',
    ]
    size = f'viewBox="0 0 860 {TOP + HEIGHT + 94}" role="img"'
    body = "\n".join(drawn)
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>\n{body}\n</svg>\n'
    )
    Path(__file__).with_suffix(".svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
