"""What was known when: later exports, backfills and corrections never change what an earlier moment saw."""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.core.errors import PolicyRefusal, UserError
from components.core.publish import publishing
from components.core.records import TrainingSetRef
from components.features.featurise import featurise
from components.features.known import Versions, first_versions, remember
from components.features.known_past import Asked, Restated
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


def restated_source(changed: int) -> tuple[Export, Export]:
    """A hundred rows, and an export of a day more in which some of them say something else."""
    first: Export = {key: (key, "a") for key in range(100)}
    return first, {**{key: (day, "b" if key < changed else "a") for key, (day, _) in first.items()}, 100: (100, "a")}


def test_what_a_restated_source_does_is_the_recipe_s_and_is_named(tmp_path: Path) -> None:
    """The rule decides: anew has no past, follow knows each change from the export on; both say so in one line."""
    first, restated = restated_source(30)
    remember(tmp_path, "first", *frame_of(first))
    anew = remember(tmp_path, "restated", *frame_of(restated))
    assert seen(anew) == seen(first_versions(*frame_of(restated)))
    follow = Restated("follow")
    followed = remember(tmp_path, "restated", *frame_of(restated), follow)
    assert seen(followed) == oracle([first, restated])
    (line,) = anew.past.notes(Restated())
    assert "restated: 30.0% of the rows of export first are changed or gone" in line
    assert "every row counts as known from its event" in line
    (line,) = followed.past.notes(follow)
    assert "each change counts as known from 2024-04-11" in line
    later: Export = {**restated, 101: (101, "a")}
    after = remember(tmp_path, "later", *frame_of(later), follow)
    assert seen(after) == oracle([first, restated, later])
    assert after.past.notes(follow) == ()


def test_a_restated_source_is_refused_where_the_recipe_says_so(tmp_path: Path) -> None:
    """Each time that it comes, since nothing of it is kept; below the recipe's share it is followed."""
    first, restated = restated_source(30)
    remember(tmp_path, "first", *frame_of(first))
    for name in ("restated", "restated", "again"):
        with pytest.raises(PolicyRefusal, match=r"features.restated: 30.0% of the rows of export first") as refused:
            remember(tmp_path, name, *frame_of(restated), Restated("refuse"))
        assert "\n" not in str(refused.value)
    remember(tmp_path / "anew", "first", *frame_of(first))
    remember(tmp_path / "anew", "restated", *frame_of(restated))
    with pytest.raises(PolicyRefusal, match=r"features.restated: 30.0%"):
        remember(tmp_path / "anew", "restated", *frame_of(restated), Restated("refuse"))
    allowed = remember(tmp_path, "restated", *frame_of(restated), Restated("refuse", 0.3))
    assert seen(allowed) == oracle([first, restated])


def test_rows_that_are_gone_restate_a_source_as_changed_ones_do(tmp_path: Path) -> None:
    """A fifth of the earlier rows is absent, most of them, or every key is written otherwise: named, and refused."""
    first, _ = restated_source(0)
    remember(tmp_path, "first", *frame_of(first))
    fewer: Export = {key: row for key, row in first.items() if key % 5 != 1}
    past = remember(tmp_path, "fewer", *frame_of({**fewer, 100: (100, "a")})).past
    assert (past.restates, past.follows, past.changed) == ("first", "", 0.2)
    others: Export = {key + 1000: row for key, row in first.items()}
    few: Export = {key: row for key, row in first.items() if key < 20 or key > 79}
    for name, export, share in (("others", others, 1.0), ("few", few, 0.6)):
        shutil.rmtree(tmp_path)
        remember(tmp_path, "first", *frame_of(first))
        with pytest.raises(PolicyRefusal, match=rf"features.restated: {share:.1%} of the rows of export first"):
            remember(tmp_path, name, *frame_of(export), Restated("refuse"))
        past = remember(tmp_path, name, *frame_of(export)).past
        assert (past.restates, past.follows, past.changed) == ("first", "", share)


Seen = set[tuple[str, str, int, int, int | None]]
LOOSE = Restated(share=0.9)  # small windows are changed in a large share


def seen_as_of(versions: Versions, day: int, days: range) -> Seen:
    """What was known at the end of a day, of events of some days."""
    return {row for row in seen(versions.as_of(START + timedelta(days=day, hours=23))) if row[2] in days}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(export_sequences(), st.data())
def test_what_was_told_stays_in_whatever_order_exports_are_read(exports: list[Export], data: st.DataObject) -> None:
    """As of each day up to which any export told, every export that is read later says the same of it.

    An export that is read after one that ends later is named as out of order, and only then; what was said once is
    said again.
    """
    order = data.draw(st.permutations(range(len(exports))))
    ends = [max(day for day, _ in export.values()) for export in exports]
    with tempfile.TemporaryDirectory() as store:
        first_said: dict[int, Seen] = {}
        told: list[tuple[int, Versions]] = []
        for at, number in enumerate(order):
            versions = remember(Path(store), f"export{number}", *frame_of(exports[number]), LOOSE)
            assert versions.past.later == sum(ends[other] > ends[number] for other in order[:at])
            for end, earlier in told:
                common = range(min(end, ends[number]) + 1)
                for day in range(end + 1):
                    assert seen_as_of(versions, day, common) == seen_as_of(earlier, day, common), (number, day)
            if not told or ends[number] >= max(end for end, _ in told):
                told.append((ends[number], versions))
            first_said[number] = seen(versions)
        for number, said in first_said.items():
            assert seen(remember(Path(store), f"export{number}", *frame_of(exports[number]), LOOSE)) == said


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(export_sequences(), st.data())
def test_a_window_in_between_says_nothing_of_what_lies_outside_it(exports: list[Export], data: st.DataObject) -> None:
    """Exports of a part of the time, read between whole ones: what whole ones tell as of then stays the same."""
    with tempfile.TemporaryDirectory() as store:
        told: list[tuple[int, Versions]] = []
        for number, export in enumerate(exports):
            end = max(day for day, _ in export.values())
            versions = remember(Path(store), f"export{number}", *frame_of(export), LOOSE)
            for earlier_end, earlier in told:
                for day in range(earlier_end + 1):
                    assert seen_as_of(versions, day, range(day + 1)) == seen_as_of(earlier, day, range(day + 1))
            told.append((end, versions))
            since, days = data.draw(st.integers(0, end)), data.draw(st.integers(1, 9))
            window = {key: row for key, row in export.items() if since <= row[0] < since + days}
            if window:
                asked = Asked(START + timedelta(days=since), START + timedelta(days=min(since + days, end + 1)))
                remember(Path(store), f"window{number}", *frame_of(window), LOOSE, asked)


def test_an_end_that_was_declared_counts_though_the_last_event_lies_before_it(tmp_path: Path) -> None:
    """A set as of day 30 of rows that end on day 25 stays when a later export brings day 28, or the cut is corrected.

    By `source.until`, and by the day as of which the set was made; where neither is told, day 28 is new.
    """
    cut: Export = {key: (key, "a") for key in range(26)}
    late: Export = {**cut, 90: (28, "late"), 91: (40, "a")}
    end = START + timedelta(days=30, hours=23)
    for name, asked in (("until", Asked(None, START + timedelta(days=31))), ("as_of", Asked(as_of=end))):
        remember(tmp_path / name, "plain", *frame_of(cut))
        before = seen(remember(tmp_path / name, "plain", *frame_of(cut), asked=asked).as_of(end))
        corrected = remember(tmp_path / name, "again", *frame_of({**cut, 3: (3, "corrected")}), asked=asked)
        assert seen(corrected.as_of(end)) == before
        assert ("3", "corrected", 3, 31, None) in seen(corrected) or ("3", "corrected", 3, 32, None) in seen(corrected)
        assert seen(remember(tmp_path / name, "late", *frame_of(late)).as_of(end)) == before, name
    remember(tmp_path / "open", "cut", *frame_of(cut))
    assert ("90", "late", 28, 28, None) in seen(remember(tmp_path / "open", "late", *frame_of(late)))


def test_an_end_that_has_not_come_yet_declares_nothing(tmp_path: Path) -> None:
    """`source.until` in a future year is no promise: the next rows are new, not late."""
    first: Export = {key: (key, "a") for key in range(20)}
    asked = Asked(None, pd.Timestamp("2190-01-01", tz="UTC"), pd.Timestamp("2190-01-01", tz="UTC"))
    remember(tmp_path, "first", *frame_of(first), asked=asked)
    assert ("20", "a", 20, 20, None) in seen(remember(tmp_path, "next", *frame_of({**first, 20: (20, "a")})))


def test_a_column_that_a_window_brings_first_changes_no_row_outside_it(tmp_path: Path) -> None:
    """Rows that were remembered without it are no corrected rows when a whole export has it."""
    first: Export = {key: (key, "a") for key in range(30)}
    remember(tmp_path, "first", *frame_of(first))
    for name, since in (("window", 20), ("whole", 0)):
        clean, keys, event = frame_of({key: row for key, row in first.items() if key >= since})
        found = remember(tmp_path, name, clean.assign(colour="red"), keys, event)
    assert (found.recorded == found.event).all()
    assert found.superseded.isna().all()


def test_after_a_source_began_anew_no_set_as_of_a_day_before_is_made(tmp_path: Path) -> None:
    """Neither of the restated export nor of those that follow it; as of later days it is."""
    first, restated = restated_source(30)
    remember(tmp_path, "first", *frame_of(first))
    assert seen(remember(tmp_path, "first", *frame_of(first)).as_of(START + timedelta(days=50)))
    later: Export = {**restated, 101: (101, "a"), 120: (120, "a")}
    for name, export in (("restated", restated), ("later", later)):
        versions = remember(tmp_path, name, *frame_of(export))
        with pytest.raises(PolicyRefusal, match=r"features.as_of 2024-02-20: .* began anew on 2024-04-11"):
            versions.as_of(START + timedelta(days=50))
        assert seen(versions.as_of(START + timedelta(days=110)))


def test_a_home_of_before_is_read(tmp_path: Path) -> None:
    """What an earlier version of this code kept of an export is followed."""
    first, _ = restated_source(0)
    remember(tmp_path, "first", *frame_of(first))
    about = tmp_path / "first" / "about.json"
    kept = json.loads(about.read_text())
    kept = {"end": kept["end"], "number": kept["number"], "after": ""}
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    shutil.rmtree(tmp_path / "first")
    with publishing(tmp_path / "first") as staging:
        shutil.copy(tmp_path / "copy" / "versions.parquet", staging)
        (staging / "about.json").write_text(json.dumps(kept))
    shutil.rmtree(tmp_path / "copy")
    second: Export = {**first, 3: (3, "corrected"), 100: (100, "a")}
    assert seen(remember(tmp_path, "second", *frame_of(second))) == oracle([first, second])


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


def test_a_restated_source_is_in_the_record_and_the_split_says_what_it_did(tmp_path: Path) -> None:
    """Half of the outcomes changed: anew says so in the record; follow leaves no such row to train on, and says why."""
    frame = complaints(ROWS)
    known = tmp_path / "known"
    first = featurise(complaint_recipe(), clean_folder(tmp_path / "a", frame), tmp_path / "one", known)
    assert first.notes == ()
    column = "Company response to consumer"
    relieved = frame[column] == "Closed with monetary relief"
    restated = frame.copy()
    restated.loc[relieved, "Consumer complaint narrative"] = "restated"
    clean = clean_folder(tmp_path / "b", restated)
    with pytest.raises(PolicyRefusal, match=r"features.restated: \d+.\d% of the rows of export"):
        featurise(complaint_recipe(features={"restated": "refuse"}), clean, tmp_path / "refused", known)
    assert not (tmp_path / "refused").exists()
    record = featurise(complaint_recipe(), clean, tmp_path / "two", known)
    assert [note.partition(":")[0] for note in record.notes] == ["the source is restated"]
    assert TrainingSetRef.read(tmp_path / "two").notes == record.notes
    with pytest.raises(UserError, match=r"train split: all \d+ rows are negative.* \d+ positive rows were left out,"):
        featurise(complaint_recipe(features={"restated": "follow"}), clean, tmp_path / "three", known)


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
