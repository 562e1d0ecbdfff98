"""Whatever lies in a run's folder, there is a page."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.core.home import Home
from pipelines.report import build_report
from tests.fakes.sample_run import sample_run

junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=True),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in a JSON document, inner ones too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, item in items for leaf in _leaves(item, (*path, key)))][0 if path else 1 :]


def _put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_value_in_any_place_still_gives_a_page(data: st.DataObject) -> None:
    """One to three values anywhere in a run's files replaced by anything: the page is built and ends."""
    folder = Path(tempfile.mkdtemp())
    try:
        home = Home.at(folder)
        run_id = sample_run(home, data.draw(st.sampled_from(["promoted", "refused_contract", "rolled_back"])))
        files = sorted(home.run(run_id).rglob("*.json"))
        for _ in range(data.draw(st.integers(1, 3))):
            path = data.draw(st.sampled_from(files))
            document = json.loads(path.read_text())
            if leaves := _leaves(document):
                _put(document, data.draw(st.sampled_from(leaves)), data.draw(junk))
            path.write_text(json.dumps(document))
        page = build_report(home, run_id)
        assert page.rstrip().endswith("</html>")
        assert "<h1>" in page
    finally:
        shutil.rmtree(folder)
