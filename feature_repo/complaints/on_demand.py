"""Features of a complaint as it is received, in training and in serving alike. See features.py for their units."""

import re
from datetime import datetime

WORD = re.compile(r"\S+")
MASKED = re.compile(
    r"(?:X{2,}[/X]*|\{\$[\d.,]+\})[.,;:!?)]*"
)  # the publisher writes XXXX for names, {$12.00} for amounts


def complaint_request(text: str, event_timestamp: datetime) -> dict[str, float | None]:
    """Length and masking of the narrative, and the day of the week.

    Args:
        text: the consumer's narrative, "" where there is none.
        event_timestamp: when the complaint was received (UTC).
    """
    words = WORD.findall(text)
    masked = sum(MASKED.fullmatch(word) is not None for word in words)
    digits = sum(character in "0123456789" for character in text)
    return {
        "narrative_words": len(words) or None,
        "narrative_masked_share": masked / len(words) if words else None,
        "narrative_digit_share": digits / len(text) if words else None,
        "received_weekday": event_timestamp.weekday(),
    }
