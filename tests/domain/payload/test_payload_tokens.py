"""What is counted is the text that is sent, by a counter that shares no code with ours.

[tokens.one-counter, budget.within-window]
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.formats.message import FormatName
from app.models.tokenizer import LocalTokenizer
from app.payload.assembler import Assembler
from app.payload.format_assemblers import assembler_of
from app.prompt.sections import NO_DYNAMIC_TEXTS, DynamicTexts
from tests.domain.histories import IMAGE_DATA, rows_of
from tests.domain.payload.builders import IMAGE, LEAST, Case, cases
from tests.judge.epochs import ITEMS
from tests.payload_tokens import payload_tokens

COUNT = LocalTokenizer().count
TAIL = DynamicTexts(('Two others\n\n\nare "busy".', "\t" * 40))


def payload_of(format: FormatName, wire: list[bytes]) -> dict[str, Any]:
    """Return items as the payload that a client gets."""
    return {ITEMS[format]: [json.loads(item) for item in wire]}


def judge(case: Case, assembler: Assembler) -> None:
    """Fail where the items hold more than was counted for them; images cost their size."""
    for tail in (NO_DYNAMIC_TEXTS, TAIL):
        items = assembler.items(tail)
        counted = items.tokens + items.summary_tokens + items.leading_tokens + items.tail_tokens
        sent = payload_tokens(payload_of(case.format, items.wire_items))
        sent += IMAGE * b"".join(items.wire_items).count(IMAGE_DATA.encode())
        assert counted >= LEAST * sent, f"{case.format}: {counted} counted, {sent} sent"


@settings(max_examples=75)
@given(case=cases(), cut=st.integers(0, 40))
def test_no_text_is_sent_uncounted(case: Case, cut: int) -> None:
    """Cold and warm, whole and reduced, in every format, each text of a payload is counted."""
    rows = [row for row in rows_of(case.log, case.format, COUNT) if case.view.shows(row.seq)]
    assembler = assembler_of(case.format)(case.view, COUNT, leading=TAIL)
    for place, row in enumerate(rows):
        if place == cut:
            judge(case, assembler)  # a warm build goes on from here
        assembler.add(row)
    assembler.finish()
    judge(case, assembler)


WORDS = "word " * 500
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
THOUGHT |= {"content": [{"type": "reasoning_text", "text": WORDS}]}
