"""Torture: agent lives at random over processes that are killed and connections that are cut.

`make torture ARGS="--minutes 10 --seed 7"` runs it; `make test` runs a short one.

1. A life is a family of conversations: a conversation, its forks, imports and snapshots. One thread
   lives it, one operation after the other; several lives run at once, over two API processes, two
   workers, a PostgreSQL behind a proxy, and a scripted model.
2. Beside each life stands a model of it (`log.py`): plain lists of what was acknowledged. It shares
   no code with the service. Every answer is compared with it, and a difference ends the life.
3. A request without an answer, or with 503, is sent again as it was, to either process. With an
   Idempotency-Key it has one effect; without, it is repeatable, or what became of it is read.
4. No answer is accepted only while the process that was asked was down, 503 only while something
   was (`faults.py`); nothing else is excused by a fault.
5. The draws of an operation depend on the seed, the number of the life and the number of the
   operation alone, those of the faults on the seed. So a seed replays the same lives and faults.
   What it does not fix: how threads and processes take turns, hence which request a fault meets,
   and what workers have compacted by then.
"""
