"""The decision log: every answer with its request, version and true status.

The active segment is SQLite (WAL) under the home: what was committed survives SIGKILL. Older rows move to Parquet parts
on fsspec storage, which DuckDB reads. Readers see both as one.
"""

from components.serving.decision_log.keeping import Keeping, kept_text
from components.serving.decision_log.reading import (
    find_decision,
    labels_after,
    newest_shadow,
    read_decisions,
    shadows_after,
)
from components.serving.decision_log.schema import (
    DECISION_LOG,
    ConflictingFeedbackError,
    UnknownDecisionError,
    now,
)
from components.serving.decision_log.writer import DecisionLog

__all__ = [
    "DECISION_LOG",
    "ConflictingFeedbackError",
    "DecisionLog",
    "Keeping",
    "UnknownDecisionError",
    "find_decision",
    "kept_text",
    "labels_after",
    "newest_shadow",
    "now",
    "read_decisions",
    "shadows_after",
]
