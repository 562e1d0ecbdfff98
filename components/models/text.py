"""Text before tokenisation: one plain, closed alphabet, so that text can never spell a special token."""

from __future__ import annotations

import re
import unicodedata

CHARACTERS_PER_TOKEN = 64  # text beyond this many characters a wanted token is cut before any work is done on it

_DATE = re.compile(r"\b(?:x{2,4}|\d{1,4})[/.-](?:x{2,4}|\d{1,2})[/.-](?:x{2,4}|\d{2,4})\b")
_MASKED = re.compile(r"\bx{2,}(?: +x{2,})*\b")
_AMOUNT = re.compile(r"[$€£¥] ?(\d[\d,]*)(?:\.\d+)?")
_NUMBER = re.compile(r"\d[\d,.]*")
_OTHER = re.compile(r"[^\w.,!?%' ]+|_+")
_HALF = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"\s+")


def normalise(text: str, tokens: int) -> str:
    """Lower case, with dates, amounts, numbers and masked parts (XXXX) collapsed to a word each.

    Args:
        text: any text; None and NaN are the caller's to replace by "".
        tokens: how many tokens will be kept, which bounds the work.

    Returns:
        Letters, digits-free words, the marks . , ! ? % ' and single spaces; never an angle bracket.
    """
    cut = text[: CHARACTERS_PER_TOKEN * tokens]
    plain = _SPACE.sub(" ", unicodedata.normalize("NFKC", cut).lower())
    plain = _DATE.sub(" date ", plain)
    plain = _MASKED.sub(" xx ", plain)
    plain = _AMOUNT.sub(_amount, plain)
    plain = _NUMBER.sub(" number ", plain)
    return _SPACE.sub(" ", _OTHER.sub(" ", plain)).strip()


def cut(text: str, tokens: int) -> str:
    """The beginning of a text as it stands, for models that know written language; bounded like `normalise`.

    Half of a surrogate pair is no character and has no bytes: the replacement character stands for it, in training as
    in serving (`normalise` leaves it out).
    """
    return _HALF.sub("\ufffd", text[: CHARACTERS_PER_TOKEN * tokens])


def _amount(match: re.Match[str]) -> str:
    """An amount keeps its order of magnitude in words."""
    digits = len(match.group(1).replace(",", ""))
    return f" amount {'small' if digits < 3 else 'medium' if digits < 4 else 'large'} "
