"""Schema of the caller of a request."""

from __future__ import annotations
