"""What a draft says of columns whose nature is known, and that it reads well and replaces nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

from components.contract.evolution.infer import infer, write_new
from components.contract.evolution.infer_columns import draft_column
from components.contract.evolution.personal import personal, protected
from components.contract.standard.contract import load
from components.core.errors import UserError
from pipelines.generators import GENERATORS
from tests.fakes.ingestion_case import write_csv


def drafted(values: list[str | None], name: str = "column") -> tuple[dict[str, Any], str]:
    """The property and its notes."""
    draft = draft_column(name, pa.chunked_array([pa.array(values, pa.string())]))
    return draft.entry, "\n".join(draft.notes)


@pytest.mark.parametrize(
    ("values", "name", "kind", "options"),
    [
        (["01/02/23", "2023-01-05", "12/31/22"], "sent", "date", {"format": "[MM/dd/yy][yyyy-MM-dd]"}),
        (["2023-01-05", "2024-02-29"], "sent", "date", {"minimum": "2023-01-01"}),
        (["31.12.2022", "1.1.2023"], "tag", "date", {"format": "d.M.yyyy"}),
        (["25/12/2022", "01/02/2023"], "sent", "date", {"format": "dd/MM/yyyy"}),
        (["20221231", "20230101"], "day", "date", {"format": "yyyyMMdd"}),
        (["20221231", "20230101"], "amount", "integer", {"minimum": 0}),
        (["2023-01-05T10:00:00Z", "2023-01-05 11:30:00.5"], "at", "timestamp", {"minimum": "2023-01-01"}),
        (["12/31/2022 23:59", "01/01/2023 00:00"], "at", "timestamp", {"format": "MM/dd/yyyy HH:mm"}),
        (["10:00:00", "23:59:59"], "at", "time", {}),
        (["1", "87", "3"], "items", "integer", {"minimum": 0, "maximum": 200}),
        (["-1.5", "2e3"], "rate", "number", {"maximum": 5000.0}),
        (["true", "false"], "paid", "boolean", {}),
        (["02134", "90210"], "area", "string", {"pattern": "^[0-9]{5}$"}),
        (["1001", "1002"], "order id", "string", {"pattern": "^[0-9]{4,5}$"}),
        (["AB-12", "XY-7"], "shelf", "string", {"pattern": "^[A-Z]{2}-[0-9]{1,2}$"}),
        (["NY", "CA"], "state", "string", {"pattern": "^[A-Z]{2}$"}),
        (["891XX", "10001"], "area", "string", {"pattern": "^[0-9A-Z]{5}$"}),
        (["a@b.org", "c.d@e.net"], "contact", "string", {"format": "email"}),
        (["2023-01-05", "soon"], "sent", "string", {"maxLength": 20}),
    ],
)
def test_the_type_of_a_column_is_found(values: list[str | None], name: str, kind: str, options: dict[str, Any]) -> None:
    """Types, formats, codes with leading zeros and identifiers that are texts, not numbers."""
    entry, _ = drafted(values, name)
    assert entry["logicalType"] == kind
    assert options.items() <= entry.get("logicalTypeOptions", {}).items()


def test_days_and_months_that_cannot_be_told_apart_are_said() -> None:
    """Both orders read these dates; one is drafted and the doubt is written beside it."""
    entry, notes = drafted(["01/02/2023", "05/06/2023"])
    assert entry["logicalTypeOptions"]["format"] == "MM/dd/yyyy"
    assert "cannot be told apart" in notes
    assert "cannot" not in drafted(["01/02/2023", "05/26/2023"])[1]


def test_markers_of_missing_values_are_members_only_of_sets_of_words() -> None:
    """N/A among numbers is missing; None among few words is one of them."""
    entry, notes = drafted(["1", "2", "N/A"] * 20)
    assert entry["logicalType"] == "integer"
    assert entry["quality"][0]["arguments"]["missingValues"] == [None, "", "N/A"]
    assert "is it?" in notes
    entry, _ = drafted(["None", "vip"] * 20)
    assert [member["value"] for member in entry["enum"]] == ["None", "vip"]
    assert entry["required"] is True


def test_the_share_of_missing_values_gets_room_and_stays_a_limit() -> None:
    """Never less than what was seen, never a limit that nothing can break; a column without a value gets none."""
    for missing in (1, 5, 50, 90, 99):
        entry, _ = drafted([None] * missing + [f"word {number}" for number in range(100 - missing)])
        (rule,) = entry["quality"]
        limit = rule.get("mustBeLessOrEqualTo", rule.get("mustBeLessThan"))
        assert missing < limit <= 100
        assert "required" not in entry
    entry, notes = drafted([None, ""])
    assert "quality" not in entry
    assert "no value was seen" in notes


@pytest.mark.parametrize(
    "name", ["ZIP code", "zipCode", "e-mail", "Consumer complaint narrative", "customer_name", "dob"]
)
def test_columns_about_persons_are_tagged_by_name(name: str) -> None:
    """With the reason beside the tag, and without showing a value."""
    entry, notes = drafted([f"value {number}" for number in range(50)], name)
    assert entry["tags"] == ["pii"]
    assert "a guess" in notes
    assert "examples" not in entry


def test_columns_about_persons_are_tagged_by_what_they_hold() -> None:
    """Addresses, numbers and sentences under a name that says nothing; products and days are not."""
    sentence = "I was charged a fee by them {} times and nobody answered my letters"
    assert personal("x", ["a@b.org", "c@d.net", "e@f.com"])
    assert personal("x", ["123-45-6789", "987-65-4321"])
    assert personal("x", [sentence.format(number) for number in range(9)])
    assert not personal("Product", ["Payday loan", "Title loan"])
    assert not personal("Date received", ["2023-01-05"])
    assert protected("Gender")
    assert protected("age group")
    assert not protected("package")


def test_a_key_of_two_columns_is_found(tmp_path: Path) -> None:
    """Neither column tells rows apart, the two together do."""
    rows = [(f"s{store}", f"2025-01-{day:02}", "same") for store in range(4) for day in range(1, 9)]
    found = infer(str(write_csv(tmp_path / "sales.csv", rows, ("store id", "day", "text"))))
    assert set(found.key) == {"store id", "day"}
    path = tmp_path / "c.yaml"
    write_new(path, found.text)
    assert set(load(path).key) == {"store id", "day"}


def test_a_draft_reads_well(tmp_path: Path) -> None:
    """Marked as a draft, a comment above each column that has one, no line too long, nothing of personal columns."""
    path = tmp_path / "complaints.csv"
    GENERATORS["complaints"](rows=600, seed=3).to_csv(path, index=False)
    found = infer(str(path))
    document = yaml.safe_load(found.text)
    assert (document["status"], document["version"], document["schema"][0]["name"]) == ("draft", "0.1.0", "complaints")
    assert found.key == ("Complaint ID",)
    assert "# seen " in found.text
    assert max(map(len, found.text.splitlines())) < 160
    narratives = pa.csv.read_csv(path).column("Consumer complaint narrative").to_pylist()
    assert not any(narrative and narrative in found.text for narrative in narratives)
    properties = {entry["name"]: entry for entry in document["schema"][0]["properties"]}
    assert properties["ZIP code"]["tags"] == ["pii"]
    assert properties["Timely response?"]["enum"]


def test_typed_and_nested_sources_are_drafted(tmp_path: Path) -> None:
    """Parquet with its own types comes out as those types."""
    import datetime as dt

    path = tmp_path / "t.parquet"
    columns = {"n": [1, 2], "x": [0.5, None], "d": [dt.date(2024, 1, 2)] * 2, "b": [True, False]}
    pq.write_table(pa.table(columns), path)
    document = yaml.safe_load(infer(str(path)).text)
    kinds = [entry["logicalType"] for entry in document["schema"][0]["properties"]]
    assert kinds == ["integer", "number", "date", "boolean"]


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    """Not one that is there, not a link; and nothing is left beside it."""
    path = tmp_path / "c.yaml"
    write_new(path, "one")
    with pytest.raises(UserError, match="not overwritten"):
        write_new(path, "two")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="not overwritten"):
        write_new(tmp_path / "link", "two")
    assert path.read_text() == "one"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["c.yaml", "link"]


def test_a_source_without_rows_is_bad_input(tmp_path: Path) -> None:
    """Nothing can be learned from a header."""
    with pytest.raises(UserError, match="no row"):
        infer(str(write_csv(tmp_path / "a.csv", [])))
