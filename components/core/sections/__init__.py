"""The sections of a recipe; `components.core.recipe` puts them together."""
