"""Patterns of personal data in a text, and masking it: e-mail addresses, phone numbers (with separators), US social
security numbers, payment card numbers (with a valid check digit). Names, postal addresses and other forms stay."""

from __future__ import annotations

import re

KINDS = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,4}\.[A-Za-z]{2,24}\b"),
    "phone": re.compile(r"(?<![\w.-])(?:\+?\d{1,3}[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"),
    "social_security": re.compile(r"(?<![\w.-])(?!000|666)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])"),
    "card": re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)"),
}


def count_kinds(text: str) -> dict[str, int]:
    """Finds in one text by kind."""
    return {kind: sum(_valid(kind, match[0]) for match in pattern.finditer(text)) for kind, pattern in KINDS.items()}


def mask(text: str) -> tuple[str, int]:
    """The text with every find replaced by its kind in brackets, and how many there were."""
    count = 0
    for kind in ("card", "social_security", "phone", "email"):  # a card's groups could pass for a phone number

        def put(match: re.Match[str], kind: str = kind) -> str:
            nonlocal count
            if not _valid(kind, match[0]):
                return match[0]
            count += 1
            return f"[{kind}]"

        text = KINDS[kind].sub(put, text)
    return text, count


def _valid(kind: str, text: str) -> bool:
    return kind != "card" or _check_digit([int(sign) for sign in text if sign.isdigit()])


def _check_digit(digits: list[int]) -> bool:
    """Luhn's rule, ISO/IEC 7812."""
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(set(digits)) > 1 and (doubled + sum(digits[::-2])) % 10 == 0
