"""What the fork server imports: all that processes of the service would import by themselves."""

from __future__ import annotations

import uvloop  # noqa: F401

import app.cli
import app.main
import app.worker  # noqa: F401
import tests.torture.forked  # noqa: F401
from app.models.litellm_gateway import LiteLLMGateway

LiteLLMGateway(None, None).load()
