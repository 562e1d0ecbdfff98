"""Failure 25: secrets in parameters, logs or compiled files. Planted ones are found nowhere after success or crash.

A whole run with a password-protected signing key and a signed link as its source; every file that it leaves behind,
databases and logs included, and all that it prints are searched for each secret, plain and encoded.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pytest_httpserver import HTTPServer

from components.core.paths import PROJECT_ROOT
from tests.e2e.chain import killed_when, none_left, pilotline
from tests.second_project.tickets import write_tickets

pytestmark = pytest.mark.slow
RECIPE = "tests/second_project/recipe.toml"
LINK, PASSWORD = "PLANTED/link+9f3b7c", "PLANTED-key-password-51d2"
OTHERS = {
    "AWS_SECRET_ACCESS_KEY": "PLANTED/aws+0c41",
    "MLFLOW_TRACKING_PASSWORD": "PLANTED-mlflow-77aa",
    "HF_TOKEN": "hf_PLANTEDtoken0d9e",
    "OPENLINEAGE_API_KEY": "PLANTED-lineage-31b8",
    "PILOTLINE_UNRELATED": "PLANTED-unrelated-2e6f",
}


class Planted:
    """A source behind a signed link, an encrypted key, and the arguments of a run that uses both."""

    def __init__(self, folder: Path, server: HTTPServer) -> None:
        self.folder, self.home = folder, folder / "home"
        content = write_tickets(folder / "tickets.jsonl").read_bytes()
        server.expect_request("/tickets.jsonl", query_string={"sig": LINK}).respond_with_data(content)
        server.expect_request("/closed.jsonl").respond_with_data("", status=403)
        key = ec.generate_private_key(ec.SECP256R1())
        place = folder / "key.pem"
        hidden = serialization.BestAvailableEncryption(PASSWORD.encode())
        place.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden))
        place.chmod(0o600)
        plain = key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.key_bytes = plain[36:68]  # the private number itself
        self.variables = {"PLANTED_LINK": quote(LINK, safe=""), "PILOTLINE_SIGNING_KEY": str(place)}
        self.variables |= {"PILOTLINE_SIGNING_KEY_PASSWORD": PASSWORD} | OTHERS
        self.uri = server.url_for("/tickets.jsonl") + "?sig=${PLANTED_LINK}"
        self.argv = ("run", "--recipe", RECIPE, "--source", self.uri, "--engine", "reference")
        self.closed = server.url_for("/closed.jsonl") + "?sig=${PLANTED_LINK}"

    def needles(self) -> dict[str, bytes]:
        """Every secret in the forms in which it could have leaked."""
        texts = {"link": LINK, "password": PASSWORD, **OTHERS}
        found = {name: text.encode() for name, text in texts.items()}
        found |= {f"{name} quoted": quote(text, safe="").encode() for name, text in texts.items()}
        found |= {
            f"{name} in base64": base64.b64encode(text.encode()).rstrip(b"=")[:-1] for name, text in texts.items()
        }
        return found | {"private key": self.key_bytes, "private key in hex": self.key_bytes.hex().encode()}

    def found(self, *texts: str) -> list[str]:
        """Where secrets are: files of the home and the working folder's outputs, and texts."""
        needles = self.needles()
        places = [path for path in self.home.rglob("*") if path.is_file() and not path.is_symlink()]
        assert not texts or any(text for text in texts)
        hits = []
        for path in places:
            content = path.read_bytes()
            hits += [
                f"{name} in {path.relative_to(self.home)}" for name, needle in needles.items() if needle in content
            ]
        joined = "\n".join(texts).encode()
        return hits + [f"{name} in what was printed" for name, needle in needles.items() if needle in joined]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    """Secrets in the environment, as a person or a cluster sets them."""
    with HTTPServer(host="127.0.0.1") as server:
        made = Planted(tmp_path, server)
        for name, value in made.variables.items():
            monkeypatch.setenv(name, value)
        yield made


def test_the_search_finds_a_secret_where_there_is_one(planted: Planted) -> None:
    """Else finding none would show nothing: in a file, in a database's page, encoded, and in a text."""
    planted.home.mkdir()
    (planted.home / "ledger.db").write_bytes(b"\0" * 99 + PASSWORD.encode() + b"\0" * 99)
    (planted.home / "log").write_bytes(base64.b64encode(LINK.encode()))
    (planted.home / "key").write_bytes(b"x" + planted.key_bytes)
    hits = planted.found(f"sig={quote(LINK, safe='')}")
    assert {"password in ledger.db", "link in base64 in log", "private key in key"} < set(hits)
    assert "link quoted in what was printed" in hits


def test_failure25_a_run_that_succeeds_leaves_no_secret(planted: Planted) -> None:
    """Promoted, signed with the protected key: report, MLflow, ledger, logs and records hold none of them."""
    code, told, err = pilotline(*planted.argv, home=planted.home)
    assert (code, told.get("outcome")) == (0, "promoted"), err
    run = planted.home / "runs" / told["run_id"]
    for kept in (run / "report.html", planted.home / "mlflow.db", planted.home / "ledger.db", run / "logs"):
        assert kept.exists()
    assert not (planted.home / "keys").exists()  # the home made no key of its own
    _, listed, errors = pilotline("models", "show", "tickets", "1", home=planted.home)
    assert listed["tags"]["signed_by"]
    assert planted.found(json.dumps(told), err, json.dumps(listed), errors) == []


def test_failure25_a_run_that_is_killed_leaves_no_secret(planted: Planted) -> None:
    """SIGKILL while it trains: nothing had the time to tidy up."""

    def training() -> bool:
        return any(planted.home.glob("runs/*/logs/train.log"))

    assert killed_when(training, *planted.argv, home=planted.home)
    assert none_left(planted.home)
    assert planted.found((planted.home.parent / "killed.log").read_text()) == []


def test_failure25_a_run_that_is_refused_leaves_no_secret(planted: Planted) -> None:
    """The host says no, or the password is wrong: one line without either."""
    argv = ("run", "--recipe", RECIPE, "--source", planted.closed, "--engine", "reference")
    code, told, err = pilotline(*argv, home=planted.home)
    assert code != 0
    assert planted.found(json.dumps(told), err) == []


def test_failure25_a_compiled_file_holds_no_secret(planted: Planted, tmp_path: Path) -> None:
    """The recipe in it names the variable, not its value."""
    planted.home.mkdir()
    out = planted.home / "pipeline.yaml"
    command = [sys.executable, "-m", "pipelines.cli", "compile", "--recipe", RECIPE, "--source", planted.uri]
    done = subprocess.run(
        [*command, "-o", str(out)], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "PLANTED_LINK" in out.read_text()
    assert planted.found(done.stdout, done.stderr) == []
