"""Images and bytes of a payload within what the provider takes. [payload.media-limits]"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversations.partial_messages import SentMedia, cut_for
from app.models.error_verdicts import Verdict, VerdictKind
from app.models.tokens import MediaLimits
from app.prompt.resolved_settings import RequestSettings
from tests.domain.compaction.strategies_messages import png
from tests.domain.payload.test_names_and_ids import values
from tests.services.fakes import ANTHROPIC, CHAT, CLAUDE, TENANT, Build, Harness, asks
from tests.services.payload.builders import check, policy

ASKS = {
    ANTHROPIC: RequestSettings(ANTHROPIC, CLAUDE),
    CHAT: RequestSettings(CHAT, "claude-sonnet-4-5"),
}


def seen(side: int = 30) -> dict[str, Any]:
    """Return a message of the user with an image."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(side, 20)}"}}
    return {"role": "user", "content": [{"type": "text", "text": "look"}, image]}


def images(build: Build) -> int:
    """Return how many images a payload has."""
    return sum(kind in ("image", "image_url") for kind in values(build.payload, "type"))


@pytest.mark.parametrize("format", ASKS)
async def test_too_many_images_go_in_one_step(harness: Harness, format: Any) -> None:
    """The oldest go, named in `degraded`; then the prefix stays until the limit comes again."""
    ask = ASKS[format]
    cid = await harness.conversation(policy(190_000))
    await harness.append(cid, *(seen() for _ in range(100)))
    build = await harness.build(cid, ask)
    assert images(build) == 100
    breaks = []
    for _ in range(30):
        await harness.append(cid, seen())
        build = await harness.build(cid, ask)
        assert images(build) <= 100
        assert "media_left_out" in build["degraded"]
        assert build["tokens_used"] == build.count()
        breaks.append(build["cache_break_reason"])
    assert "; left out; ref=" in build.contents
    assert breaks.count("media_left_out") == 30 - breaks.count(None) == 2
    assert build["epoch"] == 3


@pytest.mark.parametrize("in_result", [False, True])
async def test_a_large_image_among_many(harness: Harness, in_result: bool) -> None:
    """The newest image stays with few others, where many may not be as large."""
    cid = await harness.conversation(policy(190_000))
    await harness.append(cid, *(seen() for _ in range(25)))
    large = seen(2_001)
    if in_result:
        large = {**large, "role": "tool", "tool_call_id": "c1"}
        await harness.append(cid, asks("c1"))
    await harness.append(cid, large)
    build = await harness.build(cid, ASKS[ANTHROPIC])
    check(build, exact=False)
    assert images(build) == 15
    assert png(2_001, 20) in build.contents


async def test_refused_media_are_left_out(harness: Harness) -> None:
    """The next build lacks the oldest half and has all text. [compaction.refused-media]"""
    cid = await harness.conversation(policy(190_000))
    for number in range(8):
        await harness.append(cid, seen(), {"role": "assistant", "content": f"seen {number}"})
    before = await harness.build(cid, ASKS[ANTHROPIC])
    verdict, build = Verdict(VerdictKind.MEDIA_REFUSED), before
    for left in (4, 2, 1, 0):
        _, built = await harness.context.overflow(TENANT, cid, ASKS[ANTHROPIC], verdict)
        build = Build(built)
        check(build, exact=False)
        assert images(build) == left
    assert all(f"seen {number}" in build.contents for number in range(8))
    assert len(build.messages) == len(before.messages)
    again = await harness.build(cid, ASKS[ANTHROPIC])
    assert (again.payload, again["epoch"]) == (build.payload, build["epoch"])


@given(
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50), st.booleans()), max_size=60),
    text=st.integers(0, 100),
)
def test_a_cut_leaves_what_fits_with_room(sizes: list[tuple[int, int, bool]], text: int) -> None:
    """Nothing is cut inside the limits; else the oldest, until a quarter of each is free."""
    limits = MediaLimits(bytes=400, media=30, many=10, many_pixels=100)
    sent, seq = [], 0
    for step, size, is_large in sizes:
        seq += step - 1
        sent.append(SentMedia(seq, True, size, 101 if is_large else 9))
    total = text + sum(media.bytes for media in sent)

    def fits(left: list[SentMedia], share: float) -> bool:
        size = text + sum(media.bytes for media in left)
        is_many = len(left) > 10 * share and any(media.pixels > 100 for media in left)
        return size <= 400 * share and len(left) <= 30 * share and not is_many

    cut = cut_for(sent, total, limits)
    if fits(sent, 1.0):
        assert cut is None
        return
    assert cut is not None
    of_message = [media for media in sent if media.seq == cut.seq]
    left = of_message[cut.count :] + [media for media in sent if media.seq > cut.seq]
    assert fits(left, 0.75)
    assert not fits(sent[len(sent) - len(left) - 1 :], 0.75)
