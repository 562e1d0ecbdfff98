"""Whether a URI holds a secret in clear text: a recipe is stored, compiled and shown, and would carry it everywhere."""

from __future__ import annotations

import re
from urllib.parse import unquote

FILLED = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+")  # `${NAME}`, filled from the environment where it is used
USERINFO = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://(?P<user>[^/?#@\s:]*):?(?P<password>[^/\s]*?)@")
ARGUMENT = re.compile(r"[?&#;](?P<name>[^=&#;?\s]+)=(?P<value>[^&#;\s]*)")
WEB = frozenset({"http", "https", "ws", "wss"})  # where a name without a password is a token: no server asks for a name
WORD = re.compile(
    r"auth|authorization|bearer|code|jwt|keys?|pass|passphrase|pat|pwd|sas|session|sig"
    r"|.*(?:tokens?|secrets?|password|passwd|signature|credentials?)|.*(?:api|access|auth|private|account)key(?:id)?"
)


def holds_secret(uri: str) -> bool:
    """Whether the URI names a password, or a token as user name or in query or fragment, other than as `${NAME}`."""
    for found in USERINFO.finditer(uri):
        secret = found["password"] or (found["user"] if found["scheme"].lower() in WEB else "")
        if secret and not FILLED.fullmatch(secret):
            return True
    return any(
        found["value"] and not FILLED.fullmatch(found["value"]) and names_secret(unquote(found["name"]))
        for found in ARGUMENT.finditer(uri)
    )


def names_secret(name: str) -> bool:
    """Whether an argument of this name holds a secret: `key`, `sig`, `X-Amz-Credential`, `accessToken`, `api_key`."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    return any(WORD.fullmatch(word) for word in words)
