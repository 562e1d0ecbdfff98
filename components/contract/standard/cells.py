"""Which single values break a rule, on whole columns; engines have their own ways for the kinds that they know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.contract.standard.patterns import matches
from components.contract.standard.reading import fits
from components.contract.standard.rules import Rule

VALUE_KINDS = ("values", "pattern", "length", "reading", "retention")


def keeps(rule: Rule, texts: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Whether each text (n) is as a rule of VALUE_KINDS asks; shape (n,), False for null."""
    if rule.kind in ("reading", "retention"):
        assert rule.reading is not None, rule
        return fits(texts, rule.reading)
    if rule.kind == "values":
        kept = pc.and_(pc.is_valid(texts), pc.is_in(texts, value_set=pa.array(rule.values, pa.string())))
    elif rule.kind == "pattern":
        kept = matches(texts, rule.pattern)
    else:
        assert rule.kind == "length", rule
        length = pc.utf8_length(texts)
        kept = pc.greater_equal(length, rule.low or 0)
        if rule.high is not None:
            kept = pc.and_(kept, pc.less_equal(length, rule.high))
    return np.asarray(pc.fill_null(kept, False).to_numpy(zero_copy_only=False), bool)


def first_broken(rules: Sequence[Rule], text: str) -> Rule | None:
    """The first rule of VALUE_KINDS that a value breaks; a missing one breaks none."""
    for rule in rules:
        if rule.kind in VALUE_KINDS and text not in rule.missing and not keeps(rule, pa.array([text], pa.string()))[0]:
            return rule
    return None
