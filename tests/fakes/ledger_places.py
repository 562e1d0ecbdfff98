"""Where a ledger may lie in tests: SQLite in a file, and a database of a real PostgreSQL. And how to damage one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.fakes.postgres_server import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests of a session."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty ledger, once a kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


def change(url: str, *statements: str, off_guard: bool = True) -> None:
    """Alter a ledger behind its back; `off_guard` drops the triggers first, as somebody who owns the file could."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        if off_guard:
            for name in ("ledger_no_update", "ledger_no_delete", "ledger_in_order"):
                on = "" if engine.dialect.name == "sqlite" else " ON ledger"
                connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}{on}")
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()
