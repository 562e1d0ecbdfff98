"""Numbers, times and outcomes in words; whatever is no number is shown as a dash, never as a guess."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

NONE = "–"
METRICS = {
    "auc": "AUC",
    "average_precision": "Average precision",
    "log_loss": "Log loss",
    "brier": "Brier score",
    "ece": "Calibration error",
    "auc_difference": "AUC difference to champion",
    "fpr": "False positive rate",
    "selection_rate": "Selection rate",
    "precision": "Precision",
    "recall": "Recall",
    "accuracy": "Accuracy",
}
OPERATING = ("precision", "recall", "fpr", "selection_rate", "accuracy")
DIFFERENCES = {
    "selection_rate": "Selection rate",
    "recall": "Recall",
    "fpr": "False positive rate",
    "equalized_odds": "Equalised odds",
    "auc": "AUC",
    "ece": "Calibration error",
}
RULES = {
    "min_auc": "AUC floor",
    "max_ece": "Calibration error ceiling",
    "min_test_positives": "Positive test rows",
    "baseline": "Against a baseline",
    "champion": "Against the champion",
    "group_gap": "AUC gap of a group",
    "evidence": "Evidence is complete",
    "signature": "Model signature",
}
ACRONYMS = {"auc": "AUC", "ece": "ECE", "slo": "SLO", "id": "id"}
LOWER_IS_BETTER = {"log_loss", "brier", "ece"}


def finite(value: Any) -> float | None:
    """The value as a finite number, else None; booleans are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def number(value: Any, places: int = 3) -> str:
    """A number for people: thousands in groups, whole numbers whole, else `places` decimals."""
    found = finite(value)
    if found is None:
        return NONE
    if found == int(found) and abs(found) < 1e15:
        return f"{int(found):,}"
    if abs(found) >= 100:
        return f"{found:,.1f}"
    return f"{found:.{places}f}" if abs(found) >= 10**-places else f"{found:.2g}"


def text(value: Any, places: int = 3) -> str:
    """A number as in `number`, a text as it is, a dash for nothing."""
    if value is None or value == "":
        return NONE
    return number(value, places) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def share(value: Any) -> str:
    """A share of one in percent."""
    found = finite(value)
    if found is None:
        return NONE
    return "under 0.1 %" if 0 < found < 0.0005 else f"{100 * found:.1f} %"


def duration(seconds: Any) -> str:
    """Seconds as a person says them."""
    found = finite(seconds)
    if found is None or found < 0:
        return NONE
    if found == 0:
        return "0 s"
    if found < 1:
        return f"{found * 1000:.0f} ms"
    if found < 60:
        return f"{found:.1f} s"
    minutes, rest = divmod(round(found), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def moment(value: Any) -> str:
    """An epoch or an ISO 8601 time as 'YYYY-MM-DD HH:MM UTC'."""
    try:
        found = datetime.fromtimestamp(value, UTC) if finite(value) is not None else datetime.fromisoformat(str(value))
    except (ValueError, OverflowError, OSError):
        return text(value)
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    return found.strftime("%Y-%m-%d %H:%M UTC")


def day(value: Any) -> str:
    """The day of an ISO 8601 time."""
    try:
        return datetime.fromisoformat(str(value)).strftime("%Y-%m-%d")
    except ValueError:
        return text(value)


def days_between(earlier: Any, later: Any) -> float | None:
    """Days from one ISO 8601 time to another, None where one of them is none."""
    try:
        first, last = (datetime.fromisoformat(str(value)) for value in (earlier, later))
        zoned = [moment.replace(tzinfo=moment.tzinfo or UTC) for moment in (first, last)]
        return (zoned[1] - zoned[0]).total_seconds() / 86400
    except ValueError:
        return None


def metric(name: str) -> str:
    """A metric's name for people."""
    return METRICS.get(name, name.replace("_", " "))


def plain(name: str) -> str:
    """An identifier for people: underscores become spaces, the first letter is capital."""
    if name in RULES:
        return RULES[name]
    words = " ".join(ACRONYMS.get(word, word) for word in name.replace("_", " ").split())
    return words[:1].upper() + words[1:]


def engine(name: str) -> str:
    """Which engine served, plainly."""
    word, _, version = name.partition(" ")
    if not word:
        return "none, no model was served"
    if word.lower() == "vllm":
        return f"vLLM {version}".strip()
    if word.lower() == "reference":
        return f"the reference engine {version}".strip() + ", not vLLM"
    return name
