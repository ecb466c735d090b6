"""Records what a version of the service answers to fixed requests, and compares two recordings.

    python -m benchmarks.recorded_builds record before.jsonl --checkout ../before
    python -m benchmarks.recorded_builds record after.jsonl
    python -m benchmarks.recorded_builds compare before.jsonl after.jsonl

1. `record` starts `serve` from a checkout, over a database of its own, and talks to it over HTTP
   alone. So any version can be recorded that answers the same requests.
2. The requests are those of `scenarios`: scenarios over recorded conversations. Scenarios
   run side by side, the requests of one scenario one after another.
3. Each line of a recording is one answer: label, status, SHA-256 and body as text. Four things in
   a body differ from run to run, and are replaced before it is hashed: UUIDs of version 7, which
   the service makes, become `<id N>` by their first appearance in the scenario; the values of the
   fields of `TIME` and the time before each excerpt of `recall` become `<time>`; `duration_ms`
   becomes 0. Nothing else is changed.
4. The model that summarises is a stand-in whose answer depends on every byte of the prompt: another
   prompt leads to another payload.
"""
