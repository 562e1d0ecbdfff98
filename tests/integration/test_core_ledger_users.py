"""The ledger's database users of deploy/kubernetes/roles/ledger.sql, on a real PostgreSQL."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from components.core.errors import PolicyRefusal
from components.core.ledger import Ledger
from components.core.paths import PROJECT_ROOT
from tests.fakes.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres
SQL = PROJECT_ROOT / "deploy" / "kubernetes" / "roles" / "ledger.sql"
USERS = ("pilotline_runs", "pilotline_approves", "pilotline_reads")


def test_each_user_can_do_what_its_role_needs_and_no_more(postgres: PostgresServer) -> None:
    """Writers append under a lease and alter nothing; readers verify and write nothing; nobody makes or drops."""
    owner = postgres.database()
    Ledger(owner).close()
    plain = owner.replace("+psycopg", "")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(SQL.read_text())
    try:
        for number, user in enumerate(USERS[:2]):
            with closing(Ledger(owner.replace("tester", user))) as ledger:
                with ledger.hold("promotion") as lease:
                    ledger.append("run", f"run:{number}", {}, fence=lease)
                assert ledger.verify() == number + 1
                with pytest.raises(PolicyRefusal, match="only the ledger's owner may change it: the table belongs to"):
                    ledger.refuse_strangers("change it")
        with closing(Ledger(owner)) as owned:
            owned.refuse_strangers("change it")
        with closing(Ledger(owner.replace("tester", USERS[2]))) as reading:
            assert reading.verify() == len(reading.entries()) == 2
            with pytest.raises(PolicyRefusal, match="may not do that"):
                reading.append("run", "run:9", {})
            with pytest.raises(PolicyRefusal, match="may not do that"), reading.hold("promotion", wait=0):
                pass
        for user in USERS:
            for statement in (
                "update ledger set payload='{}'", "delete from ledger", "truncate ledger", "drop table ledger",
                "alter table ledger disable trigger all", "drop trigger ledger_no_update on ledger",
            ):  # fmt: skip
                own = plain.replace("tester", user)
                with psycopg.connect(own) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)
    finally:
        with psycopg.connect(plain, autocommit=True) as connection:
            for user in USERS:
                connection.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
