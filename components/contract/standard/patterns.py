"""Patterns in the RE2 subset, which every engine here runs in linear time, and the standard's formats of strings."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from components.contract.standard.yaml_file import Node

OUTSIDE = (
    (re.compile(r"\(\?<?[=!]"), "lookahead and lookbehind are outside the RE2 subset; write what the text must be"),
    (re.compile(r"\\[1-9]|\\k<|\(\?P="), "backreferences are outside the RE2 subset; spell the alternatives out"),
    (re.compile(r"\(\?>"), "atomic groups are outside the RE2 subset; write (?:...)"),
    (re.compile(r"[+*?}]\+"), "possessive quantifiers are outside the RE2 subset; drop the second +"),
    (re.compile(r"\(\?<[A-Za-z_]"), "a group is named (?P<name>...) in RE2; drop the name: write (?:...)"),
    (re.compile(r"\\u"), r"\u is outside the RE2 subset; write the character itself, or \x{00e9}"),
    (re.compile(r"\(\?\("), "conditional groups are outside the RE2 subset; spell the alternatives out"),
)
ESCAPED_OR_CLASS = re.compile(r"\\\\|\[\^?\]?(?:\\.|[^\]\\])*\]")

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_H = "[0-9A-Fa-f]{1,4}"
_IPV6_ENDS = "|".join(
    [rf"(?:{_H}:){{7}}{_H}", rf"(?:{_H}:){{6}}{_IPV4}"]
    + [rf"(?:{_H}:){{{n}}}(?::{_H}){{1,{7 - n}}}" for n in range(1, 7)]
    + [rf"(?:{_H}:){{{n}}}(?::{_H}){{0,{5 - n}}}:{_IPV4}" for n in range(1, 6)]
    + [rf":(?::{_H}){{1,7}}", rf"::(?:{_H}:){{0,5}}{_IPV4}", rf"(?:{_H}:){{1,7}}:", "::"]
)
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
STRING_FORMATS = {
    "email": rf"^[A-Za-z0-9.!#$%&'*+/=?^_`{{|}}~-]{{1,64}}@{_HOST}$",
    "uuid": "^[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$",
    "uri": r"^[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\x22{}|\\^`\x00-\x1f]+$",
    "hostname": f"^{_HOST}$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^(?:{_IPV6_ENDS})$",
    "byte": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
UNCHECKED_FORMATS = ("password", "binary")


def checked_pattern(node: Node) -> str:
    """The node's value as an RE2 pattern; a UserError says what is wrong with it, or which part RE2 leaves out."""
    pattern = node.value
    if not isinstance(pattern, str):
        node.fail(f"is {pattern!r}; write a regular expression")
    if problem := problem_of(pattern):
        node.fail(f"{pattern!r} is no regular expression that can be checked ({problem})")
    return str(pattern)


def problem_of(pattern: str) -> str:
    """Why RE2 does not take the pattern, "" where it does."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        bare = ESCAPED_OR_CLASS.sub("", pattern)
        named = [text for shape, text in OUTSIDE if shape.search(bare)]
        return named[0] if named else " ".join(str(error).removeprefix("Invalid regular expression: ").split())
    bare = ESCAPED_OR_CLASS.sub("", pattern)
    if re.search(r"\(\?<[A-Za-z_]", bare):  # Arrow's RE2 takes it, DuckDB's does not
        return OUTSIDE[4][1]
    return ""


def matches(texts: Any, pattern: str) -> Any:
    """Whether the pattern is found in each text (RE2 search, no flags); an Arrow boolean array, null for null.

    `^` and `$` are the ends of the whole text, `.` is no line end, a character is a code point, and `\\d`, `\\w`, `\\s`
    are ASCII. DuckDB's regexp_matches without options does the same.
    """
    return pc.match_substring_regex(texts, pattern)
