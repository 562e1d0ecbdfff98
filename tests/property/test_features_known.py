"""What was known when: later exports, backfills and corrections never change what an earlier moment saw."""

from __future__ import annotations

import json
import tempfile
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.core.errors import UserError
from components.features.featurise import featurise
from components.features.known import Versions, first_versions, remember
from tests.fakes.feature_rows import (
    FIRST_DAY,
    clean_folder,
    complaint_recipe,
    complaints,
    many_complaints,
)

START = pd.Timestamp("2024-01-01", tz="UTC")
Export = dict[int, tuple[int, str]]  # key → (day, value)


def frame_of(export: Export) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Clean rows, keys and times of an export, in order of time and key."""
    rows = sorted((day, str(key), value) for key, (day, value) in export.items())
    clean = pd.DataFrame({"id": [row[1] for row in rows], "value": [row[2] for row in rows]})
    event = pd.Series([START + timedelta(days=row[0]) for row in rows]).astype("datetime64[us, UTC]")
    return clean, clean["id"], event


def seen(versions: Versions) -> set[tuple[str, str, int, int, int | None]]:
    """Versions as plain values: id, value, event, recorded and superseded day."""

    def day(moment: pd.Timestamp) -> int:
        return (moment - START).days

    columns = (versions.clean["id"], versions.clean["value"], versions.event, versions.recorded, versions.superseded)
    return {
        (key, value, day(event), day(recorded), None if pd.isna(until) else day(until))
        for key, value, event, recorded, until in zip(*columns, strict=True)
    }


@st.composite
def export_sequences(draw: st.DrawFn) -> list[Export]:
    """Exports of one source: each adds newer rows and a few late ones, corrects some and drops one or none."""
    count = 30
    rows: Export = {key: (key % 5, "a") for key in range(count)}
    exports = [dict(rows)]
    for number in range(draw(st.integers(1, 3))):
        end = max(day for day, _ in rows.values())
        for _ in range(draw(st.integers(1, 3))):
            count += 1
            rows[count] = (end + draw(st.integers(1, 4)), "a")
        for _ in range(draw(st.integers(0, 2))):
            count += 1
            rows[count] = (draw(st.integers(0, end)), "late")
        for key in draw(st.lists(st.sampled_from(sorted(rows)), max_size=2, unique=True)):
            rows[key] = (rows[key][0], f"corrected {number}")
        exports.append(dict(rows))
    return exports


def oracle(exports: list[Export]) -> set[tuple[str, str, int, int, int | None]]:
    """By hand, row by row: when each version reached us and when another took its place."""
    found = []
    ends = [max(day for day, _ in export.values()) for export in exports]
    for key, (day, _) in exports[-1].items():
        history: list[list[int | str | None]] = []
        for number, export in enumerate(exports):
            if key not in export:
                continue
            value = export[key][1]
            if history and history[-1][0] == value:
                continue
            late = number > 0 and (bool(history) or day <= ends[number - 1])
            if history:
                history[-1][2] = ends[number] + 1
            history.append([value, ends[number] + 1 if late else day, None])
        found += [(str(key), value, day, recorded, until) for value, recorded, until in history]
    return set(found)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(export_sequences())
def test_versions_are_what_a_search_by_hand_finds(exports: list[Export]) -> None:
    """After each export; and what is seen as of a moment is the same after every later export."""
    with tempfile.TemporaryDirectory() as name:
        store = Path(name)
        seen_then: dict[int, set[tuple[str, str, int, int, int | None]]] = {}
        for number, export in enumerate(exports):
            versions = remember(store, f"export{number}", *frame_of(export))
            assert seen(versions) == oracle(exports[: number + 1])
            for day, earlier in seen_then.items():
                assert seen(versions.as_of(START + timedelta(days=day))) == earlier, (number, day)
            end = max(day for day, _ in export.values())
            for day in range(end + 1):
                seen_then.setdefault(day, seen(versions.as_of(START + timedelta(days=day))))
        for number in range(len(exports)):
            again = remember(store, f"export{number}", *frame_of(exports[number]))
            assert seen(again) == oracle(exports[: number + 1])


def test_a_correction_on_the_day_of_the_export_itself_changes_nothing_of_that_day(tmp_path: Path) -> None:
    """Two exports with one end: as of that end's day the second one's corrections and late rows are not known."""
    first: Export = {key: (key, "a") for key in range(20)}
    second: Export = {**first, 3: (3, "corrected"), 90: (5, "late")}
    end = START + timedelta(days=19, hours=23)
    before = seen(remember(tmp_path, "first", *frame_of(first)).as_of(end))
    after = remember(tmp_path, "second", *frame_of(second))
    assert seen(after.as_of(end)) == before
    assert seen(after.as_of(end + timedelta(days=1))) != before


def test_a_restated_source_is_read_as_new(tmp_path: Path) -> None:
    """An export that changes more than a tenth of the rows follows none; one that changes less does."""
    first: Export = {key: (key, "a") for key in range(100)}
    remember(tmp_path, "first", *frame_of(first))
    restated: Export = {key: (day, "b" if key < 11 else value) for key, (day, value) in first.items()}
    assert seen(remember(tmp_path, "restated", *frame_of(restated))) == seen(first_versions(*frame_of(restated)))
    corrected: Export = {key: (day, "c" if key < 9 else value) for key, (day, value) in first.items()}
    assert len(seen(remember(tmp_path, "corrected", *frame_of(corrected)))) == 109


def test_other_data_is_not_taken_for_a_later_export(tmp_path: Path) -> None:
    """Rows with the same keys and other values are a source of their own: known from their events."""
    first: Export = {key: (key, "a") for key in range(20)}
    other: Export = {key: (key, "b") for key in range(25)}
    remember(tmp_path, "first", *frame_of(first))
    assert seen(remember(tmp_path, "other", *frame_of(other))) == seen(first_versions(*frame_of(other)))


def test_an_export_that_is_cut_shorter_follows_none_that_ends_later(tmp_path: Path) -> None:
    """Going back in time sees what a home without the later export sees."""
    whole: Export = {key: (key, "a") for key in range(20)}
    cut: Export = {key: (key, "a") for key in range(10)}
    remember(tmp_path, "whole", *frame_of(whole))
    assert seen(remember(tmp_path, "cut", *frame_of(cut))) == seen(first_versions(*frame_of(cut)))


ROWS = many_complaints(700, days=300, seed=4)
CUT = 230


def made(folder: Path, frame: pd.DataFrame, known: Path | None, as_of: str = "") -> dict[str, str]:
    """Digests of the splits and of the history tables of a training set."""
    recipe = complaint_recipe(features={"as_of": as_of})
    clean = clean_folder(folder / "clean", frame)
    record = featurise(recipe, clean, folder / "set", known)
    tables = {path.name: path.read_bytes().hex() for path in sorted((folder / "set" / "history").glob("*.parquet"))}
    return {split.name: split.digest for split in record.splits} | tables


def test_a_training_set_as_of_a_day_is_that_of_data_cut_there_also_after_a_backfill(tmp_path: Path) -> None:
    """Byte for byte: from data cut at the day, from the whole as of it, and after late and corrected rows came."""
    day = (FIRST_DAY + timedelta(days=CUT)).isoformat()
    frame = complaints(ROWS)
    cut = frame[frame["Date received"] <= day].reset_index(drop=True)
    alone = made(tmp_path / "cut", cut, None)
    known = tmp_path / "known"
    clean = frame.copy()
    assert made(tmp_path / "whole", clean, known, day) == alone
    late = complaints([(40, "Company 1", "TX", True, True, 3), (200, "Company 2", "CA", True, True, 3)])
    late["Complaint ID"] = ["90001", "90002"]
    backfilled = pd.concat([frame, late], ignore_index=True)
    answers = {"Closed with explanation": "Closed with monetary relief"}
    changed = backfilled.index[20:30]
    backfilled.loc[changed, "Company response to consumer"] = (
        backfilled.loc[changed, "Company response to consumer"].map(answers).fillna("Closed with explanation")
    )
    backfilled = backfilled.assign(at=pd.to_datetime(backfilled["Date received"])).sort_values(["at", "Complaint ID"])
    backfilled = backfilled.drop(columns="at").reset_index(drop=True)
    assert made(tmp_path / "later", backfilled, known, day) == alone
    assert made(tmp_path / "careless", backfilled, None, day) != alone, "this backfill would have shown"


def test_a_late_or_corrected_row_is_not_trained_on_before_it_was_known(tmp_path: Path) -> None:
    """Events of the training time that a later export adds or changes: counted as embargoed, their history stays."""
    frame = complaints(ROWS)
    known, parts = tmp_path / "known", ("train", "validation", "test")
    featurise(complaint_recipe(), clean_folder(tmp_path / "a", frame), tmp_path / "one", known)
    late = complaints([(40, "Company 1", "TX", True, True, 3)]).assign(**{"Complaint ID": "90001"})
    later = pd.concat([frame, late], ignore_index=True)
    later.loc[10, "Consumer complaint narrative"] = "corrected"
    clean, changed = clean_folder(tmp_path / "b", later), {"90001", frame.loc[10, "Complaint ID"]}
    featurise(complaint_recipe(), clean, tmp_path / "two", known)
    featurise(complaint_recipe(), clean, tmp_path / "careless")

    def rows(made: str, name: str) -> set[str]:
        return set(pd.read_parquet(tmp_path / made / f"{name}.parquet")["row_id"])

    def embargoed(made: str) -> dict[str, int]:
        found: dict[str, int] = json.loads((tmp_path / made / "statistics.json").read_text())["embargoed"]
        return found

    assert changed - rows("one", "train") == {"90001"}
    assert rows("careless", "train") >= changed, "this backfill would have shown"
    assert rows("two", "train") == rows("careless", "train") - changed
    assert all(rows("two", name) == rows("careless", name) for name in parts[1:])
    assert embargoed("two")["before_validation"] == embargoed("careless")["before_validation"] + 2
    assert embargoed("two")["before_test"] == embargoed("careless")["before_test"]


def test_on_the_real_rows_too(tmp_path: Path, real_csv: Path) -> None:
    """As of 30 June of the real file: equal to data cut there, byte for byte, also after a backfill."""
    frame = pd.read_csv(real_csv, dtype=str, keep_default_na=False)
    frame["Date received"] = pd.to_datetime(frame["Date received"], format="%m/%d/%y").dt.strftime("%Y-%m-%d")
    frame["Date sent to company"] = pd.to_datetime(frame["Date sent to company"], format="%m/%d/%y").dt.strftime(
        "%Y-%m-%d"
    )
    frame = frame.sort_values(["Date received", "Complaint ID"], kind="stable").reset_index(drop=True)
    alone = made(tmp_path / "cut", frame[frame["Date received"] <= "2023-06-30"].reset_index(drop=True), None)
    late, first = frame.iloc[[100, 900]], frame.drop(index=[100, 900]).reset_index(drop=True)
    reduced = made(tmp_path / "r", first[first["Date received"] <= "2023-06-30"].reset_index(drop=True), None)
    known = tmp_path / "known"
    assert made(tmp_path / "whole", first, known, "2023-06-30") == reduced
    assert made(tmp_path / "later", frame, known, "2023-06-30") == reduced
    assert reduced != alone, f"rows {late['Complaint ID'].tolist()} would have shown"


def test_a_moment_before_the_first_row_is_refused(tmp_path: Path) -> None:
    """The line says when the rows begin; so does a day that is none."""
    clean = clean_folder(tmp_path / "clean", complaints(ROWS))
    with pytest.raises(UserError, match=r"features.as_of 2001-01-01: nothing was known then; the rows begin 2023-01"):
        featurise(complaint_recipe(features={"as_of": "2001-01-01"}), clean, tmp_path / "set")
    with pytest.raises(UserError, match=r"features.as_of 'June': write a day as YYYY-MM-DD"):
        featurise(complaint_recipe(features={"as_of": "June"}), clean, tmp_path / "set")
