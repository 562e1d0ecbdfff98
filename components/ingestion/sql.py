"""Rows of one SELECT through SQLAlchemy, read only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.core.errors import TransientError, UserError, one_line
from components.tables.locate import CONNECT_SECONDS, attempt
from components.tables.values import text_array

BATCH_ROWS = 50_000
CONNECT_ARGUMENTS = {"postgresql": "connect_timeout", "mysql": "connect_timeout", "mariadb": "connect_timeout"}
DIALECTS = "sqlite postgresql mysql mariadb oracle mssql duckdb snowflake bigquery trino"
READ_ONLY = {"sqlite": "PRAGMA query_only=ON", "postgresql": "SET TRANSACTION READ ONLY"}


def select(url: str, query: str, since: str = "", until: str = "") -> pa.Table:
    """The query's rows as text columns.

    Args:
        url: SQLAlchemy URL.
        query: one SELECT (or WITH ... SELECT); `:since` and `:until` in it are bound to the interval's ends.
        since: bound to `:since`.
        until: bound to `:until`.

    Raises:
        UserError: not one SELECT, a wrong URL, a driver that is absent, an SQL error, a column named twice.
        TransientError: the database cannot be reached or is locked, after bounded retries.
    """
    import sqlalchemy as sa

    statement = _single_select(query)
    engine, shown = _engine(url)
    bound = {name: value for name, value in (("since", since), ("until", until)) if re.search(rf":{name}\b", statement)}
    try:
        with attempt(lambda: _connect(engine, shown), shown) as connection:
            if guard := READ_ONLY.get(engine.dialect.name):
                connection.exec_driver_sql(guard)
            result = connection.execution_options(stream_results=True).execute(sa.text(statement), bound)
            return _table(result, shown)
    except sa.exc.DBAPIError as error:
        text = one_line(error.orig or error)
        if error.connection_invalidated or "database is locked" in text:
            raise TransientError(f"{shown}: the database went away ({text}); run again later") from error
        raise UserError(f"{shown}: the query fails ({text}); mend source.query") from error
    except sa.exc.SQLAlchemyError as error:
        raise UserError(f"{shown}: the query cannot be run ({one_line(error)}); mend source.query") from error
    finally:
        engine.dispose()


def shown_url(url: str) -> str:
    """The database URL without user, password and query, for messages and lineage."""
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise UserError("source.uri: not an SQLAlchemy URL; write it as dialect://host/database") from error
    return str(sa.URL.create(parsed.drivername, host=parsed.host, port=parsed.port, database=parsed.database))


def is_database(url: str) -> bool:
    """Whether the URL's scheme is an SQLAlchemy dialect."""
    scheme = url.partition("://")[0] if "://" in url else ""
    return scheme.partition("+")[0] in DIALECTS.split()


def _single_select(query: str) -> str:
    statement = query.strip().rstrip(";").rstrip()
    if not statement:
        raise UserError("source.query is empty; give the SELECT that reads the rows")
    bare = re.sub(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", " ", statement, flags=re.DOTALL)
    if ";" in bare or not re.match(r"\s*(select|with)\b", bare, re.IGNORECASE):
        raise UserError(f"source.query {query.strip()[:60]!r}: give a single SELECT statement")
    return statement


def _engine(url: str) -> tuple[Any, str]:
    import sqlalchemy as sa

    shown = shown_url(url)
    parsed = sa.make_url(url)
    backend, database = parsed.get_backend_name(), parsed.database or ""
    is_file = backend == "sqlite" and database not in ("", ":memory:") and not database.startswith("file:")
    if is_file and not Path(database).is_file():  # SQLite would make an empty one
        raise UserError(f"{shown}: no such file {database}; check source.uri")
    timeout = CONNECT_ARGUMENTS.get(backend)
    try:
        engine = sa.create_engine(parsed, connect_args={timeout: CONNECT_SECONDS} if timeout else {})
    except (ImportError, sa.exc.NoSuchModuleError) as error:
        raise UserError(f"{shown}: its driver is absent ({one_line(error)}); install it or name another") from error
    except (sa.exc.ArgumentError, TypeError) as error:
        raise UserError(f"{shown}: not a usable database URL ({one_line(error)})") from error
    return engine, shown


def _connect(engine: Any, shown: str) -> Any:
    import sqlalchemy as sa

    try:
        return engine.connect()
    except sa.exc.OperationalError as error:
        text = one_line(error.orig or error)
        if re.search(r"authentication|password|does not exist|not a database|access denied", text, re.IGNORECASE):
            raise UserError(f"{shown}: the database refuses ({text}); check the URL and its credentials") from error
        raise ConnectionError(text) from error


def _table(result: Any, shown: str) -> pa.Table:
    names = list(result.keys())
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{shown}: the query gives column {twice[0]!r} more than once; name one with AS")
    parts: list[pa.Table] = [pa.table({name: pa.array([], pa.string()) for name in names})]
    while batch := result.fetchmany(BATCH_ROWS):
        columns = zip(names, zip(*batch, strict=True), strict=True)
        parts.append(pa.table({name: text_array(values, name, shown) for name, values in columns}))
    return pa.concat_tables(parts)
