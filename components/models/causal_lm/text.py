"""Moved to components/models/text.py."""

from components.models.text import normalise

__all__ = ["normalise"]
