"""Credentials of a source stay out of records and messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from components.core.errors import UserError
from components.ingestion.ingest import ingest
from components.ingestion.sql import shown_url
from components.tables.locate import without_credentials
from tests.fakes.ingestion_case import recipe_for, write_csv

SECRET = "planted-secret"


def test_a_signed_link_is_kept_without_its_signature(
    httpserver: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User, password and query of a link, given through the environment, reach the host and nothing that is kept."""
    content = write_csv(tmp_path / "a.csv").read_bytes()
    httpserver.expect_request("/a.csv", query_string=f"sig={SECRET}").respond_with_data(content)
    monkeypatch.setenv("PILOTLINE_TEST_SIGNATURE", SECRET)
    uri = httpserver.url_for("/a.csv") + "?sig=${PILOTLINE_TEST_SIGNATURE}"
    ref = ingest(recipe_for(uri), tmp_path / "out")
    assert ref.rows == 3
    assert ref.source == httpserver.url_for("/a.csv")
    assert not any(SECRET.encode() in path.read_bytes() for path in (tmp_path / "out").iterdir())


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_names_the_file_and_no_secret(
    status: int, httpserver: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host's no is the user's to mend: one line without the secret, no second attempt."""
    httpserver.expect_request("/a.csv").respond_with_data("", status=status)
    monkeypatch.setenv("PILOTLINE_TEST_SIGNATURE", SECRET)
    uri = httpserver.url_for("/a.csv") + "?sig=${PILOTLINE_TEST_SIGNATURE}"
    with pytest.raises(UserError, match=r"/a\.csv: ") as raised:
        ingest(recipe_for(uri), tmp_path / "out")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (f"https://me:{SECRET}@host:81/a.csv?sig={SECRET}#x", "https://host:81/a.csv"),
        (f"s3://{SECRET}:{SECRET}@bucket/a.csv", "s3://bucket/a.csv"),
        ("/data/a?b.csv", "/data/a?b.csv"),
    ],
)
def test_shown_uris(uri: str, shown: str) -> None:
    """What is shown of a URI names the place alone."""
    assert without_credentials(uri) == shown


def test_shown_database_urls() -> None:
    """What is shown of a database URL has neither user nor password nor options."""
    url = f"postgresql+psycopg://me:{SECRET}@host:5432/rows?password={SECRET}"
    assert shown_url(url) == "postgresql+psycopg://host:5432/rows"
