"""SQL text without regard to the white space between its words."""

from __future__ import annotations

import re

TOKEN = re.compile(
    r"""--[^\n]*(?:\n|$)                          # a comment ends with its line
    | [eE]'(?:\\.|''|[^'\\])*'                  # a text with escapes
    | \w*'(?:''|[^'])*' | "(?:""|[^"])*"        # texts, names in quotes
    | \$(\w*)\$.*?\$\1\$                        # a text between dollars
    | \w+(?:\.\w+)*                             # words and numbers
    | [()\[\]{},;$'"]                           # one sign each
    | (?:(?!--)[^\w\s()\[\]{},;$'"])+           # operators
    """,
    re.VERBOSE | re.DOTALL,
)


def folded(query: str) -> str:
    """The query with one space between its words; what stands in quotes and in comments is kept as it is.

    A query with a block comment is returned as it is: those nest, and may hold a single quote.
    """
    if "/*" in query:
        return query
    return " ".join(found[0] for found in TOKEN.finditer(query))
