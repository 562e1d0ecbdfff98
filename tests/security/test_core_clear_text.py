"""A secret in a recipe's URI is refused before anything is stored, and never printed."""

from __future__ import annotations

import pytest

from components.core.errors import UserError
from tests.fakes.judged import small_recipe

PLANTED = "S3CRETVALUE"
HOLDING = [
    "https://{}@host/x.csv",
    "https://{}:@host/x.csv?a=${{B}}",
    "https://me:{}@host/x.csv",
    "postgresql://me:{}@host/db",
    "postgresql+psycopg://host/db?password={}",
    "simplecache::https://{}@host/x.csv",
    "https://host/x.csv?key={}",
    "https://host/x.csv?a=1&code={}",
    "https://host/x.csv?apikey={}",
    "https://host/x.csv?API-Key={}",
    "https://host/x.csv?subscription-key={}",
    "https://host/x.csv#token={}",
    "https://host/x.csv?a=1;access_token={}",
    "https://host/x.csv?accessToken={}",
    "https://host/x.csv?X-Amz-Credential={}",
    "https://host/x.csv?X-Goog-Signature={}",
    "https://host/x.csv?AWSAccessKeyId={}",
    "https://host/x.csv?sv=2020&sig={}",
    "https://host/x.csv?auth={}",
    "https://host/x.csv?client_secret={}",
    "https://host/x.csv?%6bey={}",
    "https://host/x.csv?key=${{NAME}}{}",
]


@pytest.mark.parametrize("uri", HOLDING)
@pytest.mark.parametrize("key", ["source.uri", "lineage.url"])
def test_a_secret_in_clear_text_is_refused_and_not_told(uri: str, key: str) -> None:
    """The message names the recipe's key; lineage.url takes web addresses only, and says so without the value."""
    section, name = key.split(".")
    with pytest.raises(UserError, match=key) as refused:
        small_recipe(**{section: {name: uri.format(PLANTED)}})
    assert PLANTED not in str(refused.value)
    assert "${NAME}" in str(refused.value) or "a value with a secret" in str(refused.value)


@pytest.mark.parametrize(
    "uri",
    [
        "rows.csv",
        "generator://complaints?rows=20000&seed=7",
        "https://host/x.csv?page=2&keyword=a&monkey=b&encoding=utf-8&authors=c",
        "https://${TOKEN}@host/x.csv?key=${KEY}#token=${A}${B}",
        "https://me:${PASSWORD}@host/x.csv",
        "postgresql://reader@host/db",
        "s3://bucket/a@b/key=1/x.csv",
        "https://host/x.csv?key=",
    ],
)
def test_what_holds_no_secret_is_accepted(uri: str) -> None:
    """Variables, user names of databases, and names that only look alike."""
    assert small_recipe(source={"uri": uri}).source.uri == uri
