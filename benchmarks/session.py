"""Long sessions in a small window, beside the last messages and the whole log.

1. Each session is kept three times by `context-service demo`: by the service, as the last messages
   in the same window, and append-only in a window that has room for it.
2. A call has the tokens of its payload. Cached are those that the payload before in its epoch had;
   the service counts the cost at the prices of the model.
3. In the end the log is read back and compared with what was sent.
4. The sessions are those of CONTEXT_TRACES_DIR whose log is larger than the window, or the demo's;
   a quick run takes the largest.
"""

from __future__ import annotations

from contextlib import closing

from app.cli import demo_session
from app.cli.demo import MODEL, Client, Lane, Trace, replay
from benchmarks.figures import Section
from benchmarks.processes import service
from benchmarks.stage import database
from tests.recorded import is_external, named_traces, source, trace_files, traces_dir
from tests.replay import Tally, judge_log, read_messages

WINDOW, QUICK_WINDOW = 64_000, 16_000


def measure(quick: bool) -> Section:
    """Replay the sessions and report the three ways."""
    window = QUICK_WINDOW if quick and not is_external() else WINDOW
    section = Section("session", "long sessions in a small window")
    rows, seen, lanes = [], Tally(), list[Lane]()
    traces = _sessions(window)[: 1 if quick else None]
    with (
        database() as (data_dir, _, log),
        service(data_dir, log=log) as served,
        closing(Client(f"http://127.0.0.1:{served.port}")) as client,
    ):
        for trace in traces:
            lanes += replay(client, trace, window)
            read = read_messages(client, lanes[-3].path.rpartition("/")[2])
            judge_log(trace.name, trace.messages, read, seen)
    for ways in (lanes[place::3] for place in range(3)):
        largest, tokens = max(lane.largest for lane in ways), sum(lane.sent for lane in ways)
        cached, cost = sum(lane.cached for lane in ways), sum(lane.cost for lane in ways)
        rows.append((ways[0].name, f"{largest:,}", f"{tokens:,}", f"{cached / tokens:.1%}",
                     f"${cost:.2f}", str(sum(len(lane.refused) for lane in ways))))  # fmt: skip
    section.add_text(
        f"Sessions: {len(traces)}, of {source() if is_external() else 'the demo'}; window"
        f" {window:,}, prices of {MODEL}. Read back: {seen.read_back:,} messages, lost or altered:"
        f" {len(seen.altered)}."
    )
    heads = ("history", "largest payload", "sent", "cached", "cost of input", "refused")
    section.add_table(heads, rows)
    return section


def _sessions(window: int) -> list[Trace]:
    """Return the sessions, the largest first (rule 4)."""
    files = trace_files(traces_dir()) if is_external() else []
    traces = [trace for path in files for trace in named_traces(path)]
    sections, tools = [{"name": "system", "content": demo_session.SYSTEM}], demo_session.tools()
    traces = traces or [Trace("made", sections, tools, demo_session.messages(600))]
    sizes = {id(trace): len(str(trace.messages)) // 4 for trace in traces}
    traces.sort(key=lambda trace: -sizes[id(trace)])
    return [trace for trace in traces if sizes[id(trace)] > window]
