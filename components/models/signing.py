"""The signature of a model directory: OpenSSF model signing, in `model.sig` beside it. The one adapter of its library.

The signature is a Sigstore bundle over a manifest of every file's name and sha256, made with an elliptic-curve key.
It says who made these bytes; the model's digest says which bytes they are.

Key: $PILOTLINE_SIGNING_KEY, a PEM file ($PILOTLINE_SIGNING_KEY_PASSWORD where it is encrypted) or a `pkcs11:` URI of a
key that stays in its module; else a pair under the home's `keys/`, made on first use. Whoever only verifies gets
$PILOTLINE_VERIFYING_KEY, a PEM file with the public key, and no private one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.errors import IntegrityError, TransientError, UserError, one_line
from components.core.home import Home
from components.models.files import check_files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

SIGNATURE_FILE = "model.sig"
SIGNED_TEXT = "signed.json"
KEY, PASSWORD, PUBLIC_KEY = "PILOTLINE_SIGNING_KEY", "PILOTLINE_SIGNING_KEY_PASSWORD", "PILOTLINE_VERIFYING_KEY"
PKCS11 = "pkcs11:"
LARGEST_SIGNATURE_BYTES = 4 << 20
CURVES = ("secp256r1", "secp384r1", "secp521r1")


class SignatureError(IntegrityError):
    """The signature does not hold. `state`: missing, unreadable, another key, or altered."""

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state


@dataclass(frozen=True)
class Signer:
    """Signs model directories with the key at `place`: a PEM file or a `pkcs11:` URI."""

    place: str
    password: str = ""

    @classmethod
    def at(cls, home: Home, variables: Mapping[str, str] = os.environ) -> Signer:
        """The signer of the environment, else of the home, whose pair of keys is made where there is none."""
        if given := variables.get(KEY):
            return cls(given, variables.get(PASSWORD, ""))
        return cls(str(_own_pair(home)))

    def sign(self, model_dir: Path, target: Path) -> None:
        """Write the signature of a model directory.

        Raises:
            UserError: the key cannot be used. IntegrityError: the directory is not one that may be signed.
        """
        check_files(model_dir)
        self._sign(model_dir, target)

    def sign_text(self, text: str) -> str:
        """The signature of a text, as a bundle in one line: of a folder that holds the text as one file.

        Raises:
            UserError: the key cannot be used.
        """
        with tempfile.TemporaryDirectory() as scratch:
            target = Path(scratch) / SIGNATURE_FILE
            self._sign(_as_folder(text, Path(scratch)), target)
            return json.dumps(json.loads(target.read_text()), separators=(",", ":"))

    def _sign(self, folder: Path, target: Path) -> None:
        from model_signing import hashing, signing

        config = signing.Config().set_hashing_config(hashing.Config())  # type: ignore[no-untyped-call]
        if self.place.startswith(PKCS11):
            self._by_module(config, folder, target)
            return
        _private(Path(self.place), self.password)  # says in words what the library would not
        try:
            config.use_elliptic_key_signer(private_key=self.place, password=self._secret)
        except (ValueError, TypeError) as error:
            raise _bad_key(self.place, error) from error
        config.sign(folder, target)

    @property
    def public_key(self) -> str:
        """The public half as PEM; UserError where it stays in a module: set $PILOTLINE_VERIFYING_KEY then."""
        if self.place.startswith(PKCS11):
            raise UserError(f"{PUBLIC_KEY} is not set: the key of a module needs its public half as a PEM file there")
        return _pem(_private(Path(self.place), self.password).public_key())

    @property
    def _secret(self) -> Any:
        return self.password.encode() or None  # the library hands it on to a reader of bytes

    def _by_module(self, config: Any, model_dir: Path, target: Path) -> None:
        try:
            config.use_pkcs11_signer(pkcs11_uri=self.place)
            config.sign(model_dir, target)
        except Exception as error:  # the errors of modules share no base
            if isinstance(error.__cause__, ImportError):
                raise UserError(f"{KEY} names a PKCS #11 key: install model-signing[pkcs11] for it") from error
            raise TransientError(f"{KEY}: the PKCS #11 module does not sign ({one_line(error)[:200]})") from error


def public_key_at(home: Home, variables: Mapping[str, str] = os.environ) -> str:
    """The public key (PEM) that models of this home are signed with: the environment's, else the home's own pair's.

    Raises:
        UserError: a file that is named is no public key on a supported curve.
    """
    if given := variables.get(PUBLIC_KEY):
        return read_public_key(Path(given))
    return Signer.at(home, variables).public_key


def signer_at(home: Home, variables: Mapping[str, str] = os.environ) -> Signer | None:
    """The signer of the environment, else of the home where that has its pair; None where this place only verifies."""
    if variables.get(KEY):
        return Signer.at(home, variables)
    return None if variables.get(PUBLIC_KEY) or not _own_place(home).exists() else Signer.at(home, variables)


def read_public_key(path: Path) -> str:
    """A public key file as normal PEM text; UserError where it is none on a supported curve."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_public_key(path.read_bytes())
        if getattr(getattr(key, "curve", None), "name", "") not in CURVES:
            raise ValueError(f"not an elliptic-curve key on {', '.join(CURVES)}")
    except (OSError, ValueError) as error:
        raise UserError(f"public key {path}: {one_line(error)[:200]}; give a PEM file") from error
    return _pem(key)


def key_id(public_key: str) -> str:
    """The name of a public key in bundles: sha256 of its PEM text."""
    return hashlib.sha256(public_key.encode()).hexdigest()


def verify_signature(model_dir: Path, signature: Path, public_keys: Sequence[str]) -> str:
    """Check that one of the keys signed exactly the files of a model directory; returns that key's id.

    Raises:
        SignatureError: the signature is missing or unreadable, of another key, or of other files or bytes.
        IntegrityError: the directory holds something that no model directory may hold.
    """
    files = check_files(model_dir)
    bundle = _bundle(signature)
    signed_by = _hint(bundle, signature)
    known = {key_id(key): key for key in public_keys}
    if signed_by not in known:
        trusted = ", ".join(name[:12] for name in known) or "none"
        raise SignatureError(
            "another key", f"{signature}: signed with key {signed_by[:12]}, trusted is {trusted}; sign with that one"
        )
    _checked(model_dir, signature, known[signed_by])
    if _named(bundle) != {path.name for path in files}:
        raise SignatureError("altered", f"{signature}: is not about all files of {model_dir}; train the model again")
    return signed_by


def verify_text(text: str, signature: str, public_keys: Sequence[str]) -> str:
    """Check that one of the keys signed exactly this text (see `Signer.sign_text`); returns that key's id.

    Raises:
        SignatureError: the signature is unreadable, of another key, or of another text.
    """
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / SIGNATURE_FILE
        place.write_text(signature, encoding="utf-8", errors="replace")
        bundle = _bundle(place)
        signed_by = _hint(bundle, place)
        known = {key_id(key): key for key in public_keys}
        if signed_by not in known:
            trusted = ", ".join(name[:12] for name in known) or "none"
            raise SignatureError("another key", f"signed with key {signed_by[:12]}, trusted is {trusted}")
        try:
            _checked(_as_folder(text, Path(scratch)), place, known[signed_by])
        except SignatureError as refused:
            raise SignatureError("altered", "its signature is of something else") from refused
        if _named(bundle) != {SIGNED_TEXT}:
            raise SignatureError("altered", "its signature is of something else")
        return signed_by


def signature_check(public_keys: Sequence[str]) -> Callable[[Path], None]:
    """A check of a model directory `<folder>/model` against `<folder>/model.sig`, for who starts a server of it."""

    def check(model_dir: Path) -> None:
        verify_signature(model_dir, model_dir.parent / SIGNATURE_FILE, public_keys)

    return check


def _as_folder(text: str, scratch: Path) -> Path:
    """A folder that holds nothing but the text: the library signs and verifies folders."""
    folder = scratch / "signed"
    folder.mkdir()
    (folder / SIGNED_TEXT).write_bytes(text.encode())
    return folder


def _checked(model_dir: Path, signature: Path, public_key: str) -> None:
    from model_signing import hashing, verifying

    with tempfile.NamedTemporaryFile("w", suffix=".pem") as stream:
        stream.write(public_key)
        stream.flush()
        config = verifying.Config()  # type: ignore[no-untyped-call]
        config.set_hashing_config(hashing.Config())  # type: ignore[no-untyped-call]
        config.use_elliptic_key_verifier(public_key=stream.name)
        try:
            config.verify(model_dir, signature)
        except Exception as error:  # the library lets errors of three others through
            raise SignatureError("altered", f"{signature}: {_why(error)}; restore the files or train again") from error


def _why(error: Exception) -> str:
    """What differs, without the digests' raw bytes."""
    text = re.sub(r": Expected 'Digest.*", "", one_line(error)) if str(error) else "the signature does not verify"
    return text.replace("Signature mismatch: ", "").strip('[]"')[:300]


def _bundle(signature: Path) -> dict[str, Any]:
    try:
        if signature.is_symlink() or signature.stat().st_size > LARGEST_SIGNATURE_BYTES:
            raise ValueError("a link or larger than a signature is")
        bundle = json.loads(signature.read_bytes())
        if not isinstance(bundle, dict):
            raise ValueError("not an object")
        return bundle
    except FileNotFoundError as error:
        raise SignatureError("missing", f"{signature}: the model has no signature; train it again") from error
    except (OSError, ValueError, RecursionError) as error:
        text = f"{signature}: no readable signature ({type(error).__name__}); train the model again"
        raise SignatureError("unreadable", text) from error


def _hint(bundle: dict[str, Any], signature: Path) -> str:
    """The id of the key that the bundle says it was made with."""
    try:
        hint = bundle["verificationMaterial"]["publicKey"]["hint"]
    except (KeyError, TypeError) as error:
        raise SignatureError("unreadable", f"{signature}: names no key; sign the model again") from error
    return str(hint)


def _named(bundle: dict[str, Any]) -> set[str]:
    """The files that a verified bundle is about."""
    payload = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    return {str(item["name"]) for item in payload["predicate"]["resources"]}


def _own_place(home: Home) -> Path:
    return home.keys / "signing.pem"


def _own_pair(home: Home) -> Path:
    """The home's private key; of two processes that make it at once the first wins."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    place = _own_place(home)
    if place.exists():
        return place
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        home.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=home.keys, prefix=".") as stream:  # made with mode 0600
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
            try:
                os.link(stream.name, place)
            except FileExistsError:
                return place
        (home.keys / "signing.pub").write_text(_pem(key.public_key()))
    except OSError as error:
        raise UserError(f"{home.keys}: cannot be written ({error.strerror}); set {KEY}") from error
    return place


def _private(path: Path, password: str) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives import serialization

    try:
        if path.stat().st_mode & 0o077:
            raise UserError(f"signing key {path}: others may read it; run chmod 600 on it, or make a new one")
        key = serialization.load_pem_private_key(path.read_bytes(), password.encode() or None)
        if getattr(getattr(key, "curve", None), "name", "") not in CURVES:
            raise ValueError(f"not an elliptic-curve key on {', '.join(CURVES)}")
    except (OSError, ValueError, TypeError) as error:
        raise _bad_key(str(path), error) from error
    return key  # type: ignore[return-value]  # it has a curve


def _bad_key(place: str, error: Exception) -> UserError:
    why = error.strerror if isinstance(error, OSError) else one_line(error)[:200]
    return UserError(f"signing key {place}: cannot be used ({why}); give a PEM file in {KEY}")


def _pem(public_key: Any) -> str:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = public_key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem.decode()
