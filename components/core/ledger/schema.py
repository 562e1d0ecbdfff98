"""The ledger's tables, and the triggers by which the database itself refuses to alter or drop an entry."""

from __future__ import annotations

import sqlalchemy as sa

METADATA = sa.MetaData()
LEDGER = sa.Table(
    "ledger",
    METADATA,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("time", sa.String, nullable=False),
    sa.Column("kind", sa.String, nullable=False, index=True),
    sa.Column("key", sa.String, nullable=False, unique=True),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("previous", sa.String, nullable=False),
    sa.Column("hash", sa.String, nullable=False),
)
LEASES = sa.Table(
    "ledger_leases",
    METADATA,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("holder", sa.String, nullable=False),  # "" where nobody holds it
    sa.Column("token", sa.Integer, nullable=False),
    sa.Column("expires", sa.Float, nullable=False),  # seconds since 1970 by the database's clock
)
REFUSAL = "the ledger is append-only"
FOLLOWS = "NEW.seq = COALESCE((SELECT MAX(seq) FROM ledger), 0) + 1"
SQLITE = [
    f"CREATE TRIGGER ledger_no_{verb.lower()} BEFORE {verb} ON ledger BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
    for verb in ("UPDATE", "DELETE")
] + [  # INSERT OR REPLACE would delete without asking the trigger for DELETE
    f"CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger WHEN NOT ({FOLLOWS}) "
    f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
]
POSTGRES = [
    f"CREATE OR REPLACE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$",
    f"CREATE OR REPLACE FUNCTION ledger_follow() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN IF {FOLLOWS} THEN RETURN NEW; END IF; RAISE EXCEPTION '{REFUSAL}'; END $$",
    "CREATE TRIGGER ledger_no_update BEFORE UPDATE OR DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_refuse()",
    "CREATE TRIGGER ledger_no_delete BEFORE TRUNCATE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()",
    "CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_follow()",
]
TRIGGERS = {"ledger_no_update", "ledger_no_delete", "ledger_in_order"}
FOUND = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger'",
    "postgresql": "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass('ledger') AND NOT tgisinternal "
    "AND tgenabled <> 'D'",
}


def is_made(connection: sa.Connection) -> bool:
    """Whether tables and triggers are there; a role that may only read and insert can then open the ledger."""
    tables = set(sa.inspect(connection).get_table_names())
    if not {LEDGER.name, LEASES.name} <= tables:
        return False
    return set(connection.exec_driver_sql(FOUND[connection.dialect.name]).scalars()) >= TRIGGERS


def make(connection: sa.Connection) -> None:
    """Make what is missing, inside a write transaction: a ledger of an earlier version gets the leases and triggers."""
    METADATA.create_all(connection, checkfirst=True)
    there = set(connection.exec_driver_sql(FOUND[connection.dialect.name]).scalars())
    for statement in SQLITE if connection.dialect.name == "sqlite" else POSTGRES:
        words = statement.split()
        if words[1] != "TRIGGER" or words[2] not in there:
            connection.exec_driver_sql(statement)
