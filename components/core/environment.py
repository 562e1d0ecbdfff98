"""Secrets stay out of recipes and records: `${NAME}` is filled from the environment where it is used."""

from __future__ import annotations

import os
import re

from components.core.errors import UserError

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def with_environment(text: str, key: str) -> str:
    """The text with each `${NAME}` replaced.

    Args:
        text: as the recipe has it.
        key: the recipe's key, for the message.

    Raises:
        UserError: a name that is not set.
    """

    def value(match: re.Match[str]) -> str:
        try:
            return os.environ[match[1]]
        except KeyError:
            raise UserError(f"{key} names ${{{match[1]}}}, which is not set in the environment; set it") from None

    return VARIABLE.sub(value, text)
