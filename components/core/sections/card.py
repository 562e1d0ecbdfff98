"""Recipe section about what people read of a model: its card."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from components.core.sections.base import Section

Text = Annotated[str, Field(max_length=2_000)]


class Card(Section):
    """What the model card says beside what was measured; what is left empty is named on the card as not stated."""

    purpose: Text = ""  # what the model is for, and what it is not for
    owner: Annotated[str, Field(max_length=200)] = ""  # who answers for the model
    contact: Annotated[str, Field(max_length=200)] = ""  # where to reach them
    limits: Annotated[tuple[Text, ...], Field(max_length=20)] = ()  # where it is not to be relied on
