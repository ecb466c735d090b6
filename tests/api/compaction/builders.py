"""Contents that tests of compaction, pins and overflow share."""

from __future__ import annotations

LONG = "We talked about the harbour, the trains and the weather in Bergen. " * 12
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"
