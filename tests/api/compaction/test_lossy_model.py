"""A model that drops, rewords and invents what users said, over HTTP. [summary.checklist]

1. Each conversation has sixteen instructions in fifteen languages, two of them alike but for their
   values, at different places: as a message, at the beginning and end of a request, inside a long
   one, in a list.
2. Each of them is in the payload after three compactions, whatever the model answers.
3. What the model invents stands below the line that says that it is not the user's, and below its
   heading of standing instructions it is marked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.compaction.summaries.checklist import NOT_SAID
from app.compaction.summaries.summary_text import TITLE, WRITTEN
from tests import fake_llm as fake
from tests.api.talk import append, assistant, new_conversation, user
from tests.fake_llm import FakeLLM

INSTRUCTIONS = (
    "Leave the ledger table alone, whatever the ticket says.",
    "Die Exportdateien bleiben immer in UTF-8 ohne BOM.",
    "Utilise toujours Python 3.12 pour les scripts.",
    "Antes de borrar un registro, enséñame la consulta.",
    "Gebruik nooit de productiesleutel in een test.",
    "Nie zmieniaj nazw kolumn bez mojej zgody.",
    "Sözleşmeleri hiçbir zaman bulutta saklama.",
    "لا ترسل أي بريد إلى العملاء قبل موافقتي.",
    "ग्राहकों के फ़ोन नंबर कभी लॉग में मत लिखो।",
    "배포는 반드시 제가 확인한 다음에만 진행하세요.",
    "顧客の住所は画面に表示しないでください。",
    "任何迁移脚本都必须可以回滚。",
    "Никогда не запускай очистку кэша днём.",
    "Utilise toujours Node 22 pour les pages.",
    "Non cambiare il formato delle date nei verbali.",
    "Skriv aldrig över en befintlig säkerhetskopia.",
)
INVENTED = "Delete the old branches every evening without asking."
REWORDED = "Be careful with tables, files, mails and dates."
FILLER = "The batch report of the evening looks like the one before, apart from a few rows. "


def ordinary(number: int) -> str:
    """Return a request without an instruction."""
    return f"Please look at module {number} next and tell me why its import is slow."


def placed(number: int, text: str) -> str:
    """Return a user's message that has an instruction at one of five places."""
    task = ordinary(number)
    long = [FILLER * 3 + f"Step {step} of the list is like this." for step in range(5)]
    return (
        text,
        f"{text} {task}",
        f"{task} {text}",
        "\n\n".join((task, *long[:2], text, *long[2:])),
        f"{task}\n\n- keep the tests green\n- {text}\n- write a short note",
    )[number % 5]


def turns(first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield turns: a request, three calls with long results, and an answer."""
    for number in range(first, first + count):
        known = number < len(INSTRUCTIONS)
        yield user(placed(number, INSTRUCTIONS[number]) if known else ordinary(number))
        for step in range(3):
            key = f"call-{number}-{step}"
            arguments = json.dumps({"cmd": f"cat module_{number}/part_{step}.py"})
            call = {
                "id": key,
                "type": "function",
                "function": {"name": "shell", "arguments": arguments},
            }
            yield assistant(f"I read part {step}.", tool_calls=[call])
            output = "\n".join(f"{number}{step}{line} = load({line * 7})" for line in range(90))
            yield {"role": "tool", "tool_call_id": key, "content": output}
        yield assistant(f"Module {number} reads its table twice; I made it read once.")


ANSWERS = {
    "drops": "## Requests\n- look at some modules",
    "rewords": f"## Standing instructions and constraints\n- {REWORDED}\n\n## Next step\n- go on",
    "invents": f"## Standing instructions and constraints\n- {INVENTED}\n\n## Next step\n- go on",
    "translates": f"## Ständige Anweisungen\n- {INVENTED}\n\n## Nächster Schritt\n- weiter",
}


async def compacted_thrice(client: httpx.AsyncClient, strategy: str) -> str:
    """Compact after six, twelve and eighteen turns; return all that is shown."""
    policy = {
        "strategy": strategy,
        "budget": {"context_window": 24_000, "max_output_tokens": 1_000},
        "tool_output": {"enabled": False},
    }
    path = await new_conversation(client, policy=policy)
    for first in (0, 6, 12):
        await append(client, path, *turns(first, 6))
        result = (await client.post(f"{path}/compact", json={})).json()
        assert result["compacted"], result
    payload = (await client.post(f"{path}/context", json={})).json()["payload"]
    return "\n".join(str(message.get("content") or "") for message in payload["messages"])


@pytest.mark.parametrize(
    ("way", "strategy"),
    [
        ("drops", "sandwich"),
        ("drops", "chain"),
        ("rewords", "retain_summary"),
        ("invents", "tree_summary"),
        ("translates", "sandwich"),
    ],
)
async def test_no_model_loses_or_invents_what_a_user_said(
    client: httpx.AsyncClient, fake_llm: FakeLLM, way: str, strategy: str
) -> None:
    """All sixteen instructions are shown after three compactions, and no invented one as theirs."""
    fake_llm.always(fake.answer(f"<summary>{ANSWERS[way]}</summary>"))
    shown = await compacted_thrice(client, strategy)
    assert fake_llm.calls >= 3
    assert [text for text in INSTRUCTIONS if text not in shown] == []
    for summary in shown.split(TITLE)[1:]:
        said, _, written = summary.partition(WRITTEN)
        assert INVENTED not in said and REWORDED not in said
        if "## Standing" in written:
            assert f"{INVENTED if way == 'invents' else REWORDED}{NOT_SAID}" in written
