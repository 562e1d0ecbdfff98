"""Guesses at columns about persons, from what they are called and what they hold. A guess is marked as one."""

from __future__ import annotations

import re
from collections.abc import Sequence

NAMES = {
    "an e-mail address": r"e_?mail",
    "a telephone number": r"phone|mobile|fax_?(no|number)|^tel(efon)?$",
    "a postal code": r"zip|post(al)?_?code|plz",
    "an address": r"address|street|^city$|latitude|longitude|^lat$|^lon$|^lng$",
    "a region of residence": r"^state$|^county$|^province$",
    "a person's name": (
        r"(first|last|full|middle|given|family|maiden|customer|client|patient|user|employee)_?name|surname|^name$"
    ),
    "a date of birth": r"birth|^dob$",
    "an identity number": r"ssn|social_?security|passport|tax_?id|national_?id|driver_?s?_?licen[cs]e",
    "an account": r"iban|account_?(no|number|id)|card_?(no|number)|^card$|user_?(id|name)|login",
    "an address on the network": r"^ip$|ip_?addr|device_?id|mac_?addr",
    "a person's own words": (
        r"narrative|comment|message|free_?text|feedback|review|description|notes?$|body|complaint_?text"
    ),
    "facts about health": r"diagnos|medical|health|disease",
}
GROUPS = r"gender|^sex$|race|ethnic|religio|disab|marital|nationality|veteran|servicemember|^age|age_?group|orientation"
VALUES = {
    "e-mail addresses": r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}",
    "addresses on the network": r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}",
    "telephone numbers": r"\+?[0-9]{1,3}?[ .(-]{1,2}[0-9]{2,4}[ .)-]{1,2}[0-9][0-9 .-]{4,}",
    "identity numbers": r"[0-9]{3}-[0-9]{2}-[0-9]{4}",
    "account numbers": r"[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?",
}
SHARE = 0.5
WORDS_OF_PROSE = 8


def personal(name: str, values: Sequence[str]) -> str:
    """Why a column seems to tell of persons, in words; "" where nothing says so.

    Args:
        name: of the column.
        values: some that it holds.
    """
    folded = _folded(name)
    for what, pattern in NAMES.items():
        if re.search(pattern, folded):
            return f"its name suggests {what}"
    for what, pattern in VALUES.items():
        if values and sum(bool(re.fullmatch(pattern, value)) for value in values) > SHARE * len(values):
            return f"its values look like {what}"
    if values and sum(len(value.split()) >= WORDS_OF_PROSE for value in values) > SHARE * len(values):
        return "its values are sentences, which may name anybody"
    return ""


def protected(name: str) -> bool:
    """Whether a column's name suggests a group that must not be treated unfairly."""
    return bool(re.search(GROUPS, _folded(name)))


def is_identifier(name: str) -> bool:
    """Whether a column's name suggests that it names something: id, number, code, key."""
    return bool(re.search(r"(^|_)(id|ids|uuid|guid|no|nr|num|number|code|key|ref|reference)$", _folded(name)))


def _folded(name: str) -> str:
    """Words in lower case, joined by underscores: `ZIP code`, `zipCode` and `zip-code` are zip_code."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")
