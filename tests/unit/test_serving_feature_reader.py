"""Features read beside the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from components.serving.feature_reader import FeatureReader


def test_each_asker_gets_its_own_row_or_its_own_error_in_order() -> None:
    """Read one after another in one thread, many at once or not; a row that fails fails alone."""
    seen: list[tuple[str, int]] = []

    def read(entities: Mapping[str, str], request: Mapping[str, Any]) -> str:
        seen.append((entities["shop"], threading.get_ident()))
        if entities["shop"] == "3":
            raise ValueError("three")
        return entities["shop"] + request["text"]

    async def asked() -> list[Any]:
        reader = FeatureReader(SimpleNamespace(read=read))
        found = await asyncio.gather(
            *(reader.ask({"shop": str(i)}, {"text": "!"}) for i in range(20)), return_exceptions=True
        )
        found.append(await reader.ask({"shop": "20"}, {"text": "!"}))
        reader.close()
        return found

    found = asyncio.run(asked())
    assert isinstance(found.pop(3), ValueError)
    assert found == [f"{i}!" for i in range(21) if i != 3]
    assert [shop for shop, _ in seen] == [str(i) for i in range(21)]
    assert {thread for _, thread in seen}.isdisjoint({threading.get_ident()})


def test_a_store_that_hangs_costs_no_more_than_the_deadline_and_holds_up_no_end() -> None:
    """Who gave up is passed over when the store answers again, and the process does not wait for the thread."""
    gate, read_rows = threading.Event(), []

    def read(entities: Mapping[str, str], _: Mapping[str, Any]) -> str:
        read_rows.append(entities["shop"])
        gate.wait(30)
        return entities["shop"]

    async def asked() -> str:
        reader = FeatureReader(SimpleNamespace(read=read))
        started = time.perf_counter()
        for shop in ("hangs", "gave-up"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.ask({"shop": shop}, {}), 0.1)
        assert time.perf_counter() - started < 10
        gate.set()
        return str(await reader.ask({"shop": "later"}, {}))

    assert asyncio.run(asked()) == "later"
    assert read_rows == ["hangs", "later"]
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "features")
