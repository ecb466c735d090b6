"""How long a test waits for what has to happen, before it fails."""

from __future__ import annotations

PATIENCE_SECONDS = 120.0
"""Waits end when the thing happens, so this is long only where it never does."""
