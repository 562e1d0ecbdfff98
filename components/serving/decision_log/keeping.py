"""What the log keeps of a request: nothing, a digest, masked text, or all of it under the subject's key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from components.core.personal_data import mask
from components.serving.decision_log.keys import SubjectKeys

NONE, HASH, PLAIN, ENCRYPTED = "none", "hash", "plain", "encrypted"


@dataclass(frozen=True)
class Keeping:
    """The policy of one recipe.

    Where it names a subject (an entity), entities and features are kept under that subject's key only, and with
    `encrypted` the text as well.
    """

    text: str = NONE
    subject: str = ""
    keys: SubjectKeys | None = None

    def applied(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values of a record as they may be written; `text`, `entities` and `features` come in as they are."""
        text = values["text"]
        kept = kept_text(text, self.text)
        if self.keys is None or not self.subject:
            return values | kept
        inner = {"entities": values["entities"], "features": values["features"]}
        if self.text == ENCRYPTED:
            inner["text"] = _writable(text)
        subject = str(values["entities"].get(self.subject, ""))
        cipher = self.keys.seal(subject, json.dumps(inner).encode(), values["id"])
        told = {"subject": self.keys.pseudonym(subject), "cipher": cipher, "entities": {}, "features": {}}
        return values | kept | told


def kept_text(text: str, keep: str) -> dict[str, Any]:
    """What is written of a text in the clear: nothing, its sha256 (short texts can be guessed from it), or the text
    with personal data masked; `masked` counts what was masked."""
    written = text.encode("utf-8", "replace")
    digest = "" if keep == NONE else sha256(written).hexdigest()
    if keep != PLAIN or _writable(text) is None:
        return {"text": None, "text_digest": digest, "masked": 0}
    shown, masked = mask(text)
    return {"text": shown, "text_digest": digest, "masked": masked}


def _writable(text: str) -> str | None:
    """The text, None where it is no UTF-8: lone surrogates cannot be written."""
    return text if text.encode("utf-8", "replace").decode() == text else None
