"""Our comparison against datacontract-cli's, where that one can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.contract_versions import BASE, Edit, difference, edited
from tests.unit.test_contract_evolution import ADDITIVE, BREAKING, WORDING

# A new column may be empty here; datacontract expects it in old rows. A longer list of values, a wider range and a
# lower limit are unexpected to a consumer in its eyes; here they are additions. `required` at a key says nothing new.
WIDER = {
    "column_added",
    "enum_member_added",
    "range_widened",
    "length_widened",
    "pattern_widened",
    "limit_loosened",
    "sla_tightened",
    "restated",
}
CASES = [(kind, edit) for kind, _, edit in BREAKING] + ADDITIVE + WORDING


@pytest.mark.parametrize(("kind", "edit"), CASES, ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)])
def test_what_datacontract_calls_breaking_is_breaking_or_an_addition(kind: str, edit: Edit, tmp_path: Path) -> None:
    """From either perspective; what it cannot tell (its infos on required, enum and length) is not asked."""
    from datacontract.data_contract import DataContract
    from datacontract.model.breaking import Perspective

    ours = difference(tmp_path, edited(edit, "1.5.0"))
    sides = [DataContract(data_contract_file=str(tmp_path / name)) for name in ("old.yaml", "new.yaml")]
    theirs = {perspective: sides[0].breaking(sides[1], perspective=perspective) for perspective in Perspective}
    if any(found.is_breaking for found in theirs.values()):
        assert ours.breaking or {one.kind for one in ours.changes} <= WIDER, (kind, ours.changes)
    if not ours.changes:
        assert not any(found.is_breaking for found in theirs.values())


def test_datacontract_sees_most_of_what_breaks(tmp_path: Path) -> None:
    """The comparison above is not empty: it calls most of our breaking cases breaking too."""
    from datacontract.data_contract import DataContract
    from datacontract.model.breaking import Perspective

    seen = 0
    cases = BREAKING[::4]
    for _, _, edit in cases:
        difference(tmp_path, edited(edit, "1.5.0"), BASE)
        sides = [DataContract(data_contract_file=str(tmp_path / name)) for name in ("old.yaml", "new.yaml")]
        seen += any(sides[0].breaking(sides[1], perspective=perspective).is_breaking for perspective in Perspective)
    assert seen > len(cases) / 2
