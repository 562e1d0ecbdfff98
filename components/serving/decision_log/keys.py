"""A key for each subject of decisions: what is kept of a subject is readable as long as its key is there.

AES-256-GCM (NIST SP 800-38D), a random nonce a message, the decision's id as associated data. Keys lie in a small
SQLite file, each wrapped by the home's master key ($PILOTLINE_DECISION_KEY, 32 bytes as base64, else a file that only
its owner reads); subjects are named there by an HMAC under the same master key. Destroying a key overwrites its page
(SQLite's secure_delete); copies of the file made before, and blocks that a disk sets aside, are beyond its reach. A key
knows the day of its last use, so that one whose rows were all deleted goes with them.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from components.core.errors import UserError
from components.serving.decision_log.schema import now

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEYS = "decision_keys.db"
MASTER = "keys/decisions.key"
MASTER_VARIABLE = "PILOTLINE_DECISION_KEY"
MOST_CACHED = 4096
NONCE = 12
SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (id TEXT PRIMARY KEY, subject TEXT NOT NULL, wrapped BLOB NOT NULL, made TEXT NOT NULL,
  used TEXT NOT NULL DEFAULT '');
CREATE UNIQUE INDEX IF NOT EXISTS keys_subject ON keys (subject);
CREATE TABLE IF NOT EXISTS forgotten (
  subject TEXT NOT NULL, time TEXT NOT NULL, reason TEXT NOT NULL, keys INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS master (fits TEXT NOT NULL);
"""
WRONG_MASTER = (
    f"decision keys: the master key is not the one that they were made with; restore {MASTER}, or set {MASTER_VARIABLE}"
)


class SubjectKeys:
    """Seals and opens what is kept of subjects; one thread at a time."""

    def __init__(self, path: Path, master: bytes) -> None:
        self._master = master
        self._connection = _connect(path)
        self._check_master()
        self._cached: dict[str, tuple[str, AESGCM] | AESGCM] = {}
        self._day = ""  # of what is cached: on another day each key's last use is written anew
        self._version = -1

    @classmethod
    def at(cls, folder: Path) -> Self:
        """The keys of a home, made where there are none.

        Raises:
            UserError: the master key is not 32 bytes, is not the one that the keys were made with, or is gone.
        """
        return cls(folder / KEYS, _master(folder))

    @classmethod
    def existing(cls, folder: Path) -> Self | None:
        """The keys of a home for reading, None where it has none or its master key is not here; UserError as `at`."""
        there = (folder / KEYS).is_file() and (os.environ.get(MASTER_VARIABLE) or (folder / MASTER).is_file())
        return cls.at(folder) if there else None

    def pseudonym(self, subject: str) -> str:
        """What stands for a subject in the log: HMAC-SHA256 under the master key, as hex."""
        return hmac.digest(self._master, b"subject\0" + subject.encode("utf-8", "replace"), "sha256").hex()

    def seal(self, subject: str, message: bytes, about: str) -> str:
        """The message under the subject's key, which is made where there is none; `about` has to be told to open it."""
        key_id, key = self._of(self.pseudonym(subject))
        nonce = secrets.token_bytes(NONCE)
        sealed = nonce + key.encrypt(nonce, message, about.encode())
        return f"{key_id}:{base64.b64encode(sealed).decode()}"

    def open(self, cipher: str, about: str) -> bytes | None:
        """The message, None where its key was destroyed or it is not what was sealed."""
        from cryptography.exceptions import InvalidTag

        key_id, _, sealed = cipher.partition(":")
        if (key := self._by_id(key_id)) is None:
            return None
        with suppress(InvalidTag, binascii.Error, ValueError):
            data = base64.b64decode(sealed, validate=True)
            return key.decrypt(data[:NONCE], data[NONCE:], about.encode())
        return None

    def forget(self, subject: str, reason: str) -> int:
        """Destroy the subject's key; how many there were (0 where it was never seen, or is forgotten already)."""
        name = self.pseudonym(subject)
        self._cached.clear()
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            gone = self._connection.execute("DELETE FROM keys WHERE subject = ?", (name,)).rowcount
            if gone:
                told = (name, now(), reason, gone)
                self._connection.execute("INSERT INTO forgotten VALUES (?, ?, ?, ?)", told)
        return gone

    def times_forgotten(self, subject: str) -> int:
        """How often a key of this subject was destroyed."""
        asked = "SELECT COUNT(*) FROM forgotten WHERE subject = ?"
        return int(self._connection.execute(asked, (self.pseudonym(subject),)).fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _check_master(self) -> None:
        """Under another master key a subject has another pseudonym: it would look as if nothing were kept of it."""
        fits = hmac.digest(self._master, b"check", "sha256").hex()
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            row = self._connection.execute("SELECT fits FROM master").fetchone()
            if row is None:
                if made := self._connection.execute("SELECT wrapped, id FROM keys LIMIT 1").fetchone():
                    self._unwrap(*made)  # keys of an earlier version
                self._connection.execute("INSERT INTO master VALUES (?)", (fits,))
            elif not hmac.compare_digest(str(row[0]), fits):
                raise UserError(WRONG_MASTER)

    def _of(self, subject: str) -> tuple[str, AESGCM]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._fresh()
        if (today := now()[:10]) != self._day:
            self._cached.clear()
            self._day = today
        if isinstance(found := self._cached.get(subject), tuple):
            return found
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            row = self._connection.execute("SELECT id, wrapped FROM keys WHERE subject = ?", (subject,)).fetchone()
            if row is None:
                key_id, key = secrets.token_hex(8), AESGCM.generate_key(256)
                wrapped = self._wrap(key, key_id)
                told = (key_id, subject, wrapped, now(), today)
                self._connection.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", told)
                row = (key_id, wrapped)
            else:
                self._connection.execute("UPDATE keys SET used = ? WHERE id = ? AND used < ?", (today, row[0], today))
        made = str(row[0]), AESGCM(self._unwrap(row[1], row[0]))
        return self._keep(subject, made)

    def _by_id(self, key_id: str) -> AESGCM | None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._fresh()
        found = self._cached.get(f"id:{key_id}")
        if found is not None and not isinstance(found, tuple):
            return found
        row = self._connection.execute("SELECT wrapped FROM keys WHERE id = ?", (key_id,)).fetchone()
        if row is None:
            return None
        made = AESGCM(self._unwrap(row[0], key_id))
        self._keep(f"id:{key_id}", made)
        return made

    def _keep(self, name: str, made: object) -> tuple[str, AESGCM]:
        if len(self._cached) >= MOST_CACHED:
            self._cached.clear()
        self._cached[name] = made  # type: ignore[assignment]
        return made  # type: ignore[return-value]

    def _fresh(self) -> None:
        """Forget what is cached when another process changed the file: a destroyed key is used no more."""
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._version = version
            self._cached.clear()

    def _wrap(self, key: bytes, key_id: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(NONCE)
        return nonce + AESGCM(self._master).encrypt(nonce, key, key_id.encode())

    def _unwrap(self, wrapped: bytes, key_id: str) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            return AESGCM(self._master).decrypt(wrapped[:NONCE], wrapped[NONCE:], key_id.encode())
        except InvalidTag as error:
            raise UserError(WRONG_MASTER) from error


def drop_unused(folder: Path, before: str) -> int:
    """Destroy the keys of a home that were last used on a day before this time (ISO 8601); how many there were."""
    path = folder / KEYS
    if not path.is_file():
        return 0
    with closing(_connect(path)) as connection:
        return connection.execute("DELETE FROM keys WHERE used < ?", (before[:10],)).rowcount


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.executescript(SCHEMA)
    if "used" not in {row[1] for row in connection.execute("PRAGMA table_info(keys)")}:  # of an earlier version
        connection.execute("ALTER TABLE keys ADD COLUMN used TEXT NOT NULL DEFAULT ''")
        connection.execute("UPDATE keys SET used = ?", (now()[:10],))
    path.chmod(0o600)
    return connection


def _master(folder: Path) -> bytes:
    if given := os.environ.get(MASTER_VARIABLE):
        return _checked(given, MASTER_VARIABLE)
    path = folder / MASTER
    if not path.exists():
        if (folder / KEYS).is_file():
            raise UserError(f"{path}: gone, and {folder / KEYS} was made with it; restore it, or set {MASTER_VARIABLE}")
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        handle = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(base64.b64encode(secrets.token_bytes(32)))
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileExistsError):  # another process was first: its key counts
            os.link(staging, path)
        staging.unlink()
    return _checked(path.read_text(), str(path))


def _checked(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise UserError(f"{where}: the decision log's master key is 32 bytes as base64; restore it")
    return key
