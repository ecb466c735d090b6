"""Spans of compactions, model calls and jobs, by OpenTelemetry's API.

Without a collector the tracer is the API's no-op. A span holds ids, sizes and kinds, never content:
no text of messages and no text of exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry.trace import NoOpTracer, Span, SpanKind, Status, StatusCode, Tracer

from app.common.errors import ContextError
from app.conversations.compaction_results import CompactResult
from app.models.model_calls import Completion, ModelCall

ResultRecorder = Callable[[CompactResult], None]
CompletionRecorder = Callable[[Completion], None]

PROVIDERS: Mapping[str, str] = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""The semantic conventions' provider names, where LiteLLM's prefix of a model differs."""


class Spans:
    """Creates the spans of everything but requests."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or NoOpTracer()

    @contextmanager
    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> Iterator[ResultRecorder]:
        """Span a compaction; the block passes its result."""
        attributes = {
            "context.conversation_id": conversation_id,
            "context.compaction.trigger": trigger,
            "context.compaction.strategy": strategy,
        }

        def record(result: CompactResult) -> None:
            span.set_attribute("context.compaction.compacted", result.compacted)
            span.set_attribute("context.compaction.before_tokens", result.before_tokens)
            span.set_attribute("context.compaction.after_tokens", result.after_tokens)

        with self._span("compaction", attributes) as span:
            yield record

    @contextmanager
    def calling(self, call: ModelCall) -> Iterator[CompletionRecorder]:
        """Span a model call by the conventions for generative AI; the block passes the answer."""
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_of(call.model),
            "gen_ai.request.model": call.model,
            "gen_ai.request.max_tokens": call.max_tokens,
        }

        def record(completion: Completion) -> None:
            span.set_attribute("gen_ai.response.finish_reasons", [completion.finish_reason])
            span.set_attribute("gen_ai.usage.input_tokens", completion.input_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", completion.output_tokens)

        with self._span(f"chat {call.model}", attributes, SpanKind.CLIENT) as span:
            yield record

    def working(self, conversation_id: str, kind: str) -> AbstractContextManager[Span]:
        """Span a worker's job, which begins a trace."""
        attributes = {"context.conversation_id": conversation_id, "context.job.kind": kind}
        return self._span("job", attributes, SpanKind.CONSUMER)

    @contextmanager
    def _span(
        self, name: str, attributes: Mapping[str, Any], kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        """Span the block; of an exception only its kind is recorded."""
        with self._tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", _kind_of(error))
                span.set_status(Status(StatusCode.ERROR))
                raise


def provider_of(model: str) -> str:
    """Return the conventions' name of the provider that LiteLLM calls for a model."""
    prefix, slash, _ = model.partition("/")
    return PROVIDERS.get(prefix, prefix) if slash else "openai"


def _kind_of(error: BaseException) -> str:
    reason = error.facts.get("reason") if isinstance(error, ContextError) else None
    return str(reason) if reason is not None else type(error).__name__
