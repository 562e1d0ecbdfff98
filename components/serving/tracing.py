"""OpenTelemetry traces of decisions, exported only where OTEL_EXPORTER_OTLP_ENDPOINT says whereto.

Spans hold ids, arms, versions, statuses and times: no text, no entity, no feature value. What waits for the exporter is
bounded; what does not fit is dropped, and nobody's answer waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
MOST_WAITING, EXPORT_SECONDS = 2048, 5


class Tracing:
    """Spans of the scoring service; does nothing where no endpoint is set."""

    def __init__(self) -> None:
        self._provider = _provider() if any(os.environ.get(name) for name in ENDPOINTS) else None
        self._tracer = self._provider.get_tracer("pilotline.serving") if self._provider else None

    @property
    def on(self) -> bool:
        """Whether anything is traced."""
        return self._tracer is not None

    @contextmanager
    def span(self, name: str, headers: dict[str, str] | None = None, **about: Any) -> Iterator[Any]:
        """A span around the block; `headers` of the caller continue its trace. Yields None where nothing is traced."""
        if self._tracer is None:
            yield None
            return
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(headers) if headers else None
        with self._tracer.start_as_current_span(name, context=parent, attributes=about) as span:
            yield span

    def onward(self) -> dict[str, str]:
        """Headers that let the next server continue the trace."""
        if self._tracer is None:
            return {}
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        return headers

    def close(self) -> None:
        """Send what waits, for a few seconds at most."""
        if self._provider is not None:
            self._provider.force_flush(EXPORT_SECONDS * 1000)
            self._provider.shutdown()


def _provider() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = os.environ.get("OTEL_SERVICE_NAME") or "pilotline-scoring"
    provider = TracerProvider(resource=Resource.create({"service.name": named}))
    exporter = OTLPSpanExporter(timeout=EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MOST_WAITING, max_export_batch_size=512))
    return provider
