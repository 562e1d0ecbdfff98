"""Who made a model: signed with the home's key, refused where the signature is missing, altered or another's."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from components.core.errors import IntegrityError, TransientError, UserError
from components.core.home import Home
from components.core.paths import PROJECT_ROOT
from components.models.files import SIGNATURE
from components.models.signing import (
    SIGNATURE_FILE,
    SignatureError,
    Signer,
    key_id,
    public_key_at,
    read_public_key,
    signature_check,
    verify_signature,
)
from tests.fakes.weights import weights


class Signed:
    """A model directory with its signature, by a home's own key."""

    def __init__(self, root: Path) -> None:
        self.root, self.home = root, Home.at(root / "home")
        self.model = root / "model"
        self.model.mkdir()
        (self.model / "model.safetensors").write_bytes(weights("a"))
        (self.model / SIGNATURE).write_text("{}")
        self.file = root / SIGNATURE_FILE
        Signer.at(self.home, {}).sign(self.model, self.file)
        self.key = public_key_at(self.home, {})

    def refused(self, *keys: str) -> SignatureError:
        """The error that verification ends with."""
        with pytest.raises(SignatureError) as refused:
            verify_signature(self.model, self.file, keys or [self.key])
        assert "\n" not in str(refused.value)
        return refused.value


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    """A signed model."""
    return Signed(tmp_path)


def test_a_signed_model_verifies_and_names_its_key(signed: Signed) -> None:
    """Also beside other trusted keys, and through the check that a server's launcher gets."""
    other = public_key_at(Home.at(signed.root / "other"), {})
    assert verify_signature(signed.model, signed.file, [other, signed.key]) == key_id(signed.key)
    signature_check([signed.key])(signed.model)


def test_the_key_pair_is_made_once_and_readable_by_its_owner_alone(signed: Signed) -> None:
    """On first use, mode 0600, in a folder of mode 0700; later uses take what is there."""
    place = signed.home.keys / "signing.pem"
    before = place.read_bytes()
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(signed.home.keys.stat().st_mode) == 0o700
    assert sorted(path.name for path in signed.home.keys.iterdir()) == ["signing.pem", "signing.pub"]
    Signer.at(signed.home, {}).sign(signed.model, signed.file)
    assert place.read_bytes() == before
    assert (signed.home.keys / "signing.pub").read_text() == signed.key


def test_first_uses_at_once_agree_on_one_key(tmp_path: Path) -> None:
    """Of four processes that find no key, all end with the same one."""
    code = (
        "import sys\nfrom components.core.home import Home\nfrom components.models.signing import public_key_at\n"
        "print(public_key_at(Home.at(sys.argv[1]), {}))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "home")]
    started = [subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {process.communicate(timeout=60)[0] for process in started}
    assert len(said) == 1
    assert "BEGIN PUBLIC KEY" in said.pop()


def test_any_altered_byte_of_any_file_is_refused_by_name(signed: Signed) -> None:
    """The weights' last byte, the signature of inputs, a file more, a file less."""
    path = signed.model / "model.safetensors"
    path.write_bytes(weights("b"))
    told = signed.refused()
    assert told.state == "altered"
    assert "model.safetensors" in str(told)
    path.write_bytes(weights("a"))
    (signed.model / SIGNATURE).write_text("[]")
    assert signed.refused().state == "altered"
    (signed.model / SIGNATURE).write_text("{}")
    verify_signature(signed.model, signed.file, [signed.key])
    (signed.model / "merges.txt").write_text("")
    assert "merges.txt" in str(signed.refused())
    (signed.model / "merges.txt").unlink()
    path.rename(signed.model / "renamed.safetensors")
    with pytest.raises(IntegrityError, match=r"renamed\.safetensors"):
        verify_signature(signed.model, signed.file, [signed.key])


def test_a_missing_signature_is_named(signed: Signed) -> None:
    """Never taken for a signature that holds."""
    signed.file.unlink()
    assert signed.refused().state == "missing"


def test_another_key_is_refused_although_its_signature_is_whole(signed: Signed) -> None:
    """Whoever can write the folder can sign, but not as us; no key at all trusts nobody."""
    stranger = Home.at(signed.root / "stranger")
    Signer.at(stranger, {}).sign(signed.model, signed.file)
    verify_signature(signed.model, signed.file, [public_key_at(stranger, {})])
    told = signed.refused()
    assert told.state == "another key"
    assert key_id(signed.key)[:12] in str(told)
    with pytest.raises(SignatureError, match="trusted is none"):
        verify_signature(signed.model, signed.file, [])


def test_a_stranger_who_claims_our_key_is_refused(signed: Signed) -> None:
    """The bundle's hint is only a hint: it selects the key that the signature then has to verify with."""
    Signer.at(Home.at(signed.root / "stranger"), {}).sign(signed.model, signed.file)
    bundle = json.loads(signed.file.read_text())
    bundle["verificationMaterial"]["publicKey"]["hint"] = key_id(signed.key)
    signed.file.write_text(json.dumps(bundle))
    assert signed.refused().state == "altered"


def test_an_altered_list_of_files_is_refused(signed: Signed) -> None:
    """The manifest inside is what is signed: another digest in it breaks the signature."""
    (signed.model / "model.safetensors").write_bytes(weights("b"))
    stranger = signed.root / "b.sig"
    Signer.at(Home.at(signed.root / "stranger"), {}).sign(signed.model, stranger)
    ours, theirs = (json.loads(path.read_text()) for path in (signed.file, stranger))
    ours["dsseEnvelope"]["payload"] = theirs["dsseEnvelope"]["payload"]
    signed.file.write_text(json.dumps(ours))
    assert signed.refused().state == "altered"


def test_a_signature_that_leaves_files_out_is_refused(signed: Signed) -> None:
    """A signer that ignores a file has not signed the model, although its key is trusted."""
    from model_signing import hashing, signing

    (signed.model / "added_tokens.json").write_text("{}")
    config = signing.Config().use_elliptic_key_signer(private_key=signed.home.keys / "signing.pem")
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=["added_tokens.json"]))
    config.sign(signed.model, signed.file)
    told = signed.refused()
    assert told.state == "altered"
    assert "not about all files" in str(told)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"verificationMaterial": 3}', "\xff", "[" * 90_000])
def test_what_is_no_bundle_is_refused(signed: Signed, text: str) -> None:
    """Whatever lies in its place."""
    signed.file.write_text(text)
    assert signed.refused().state == "unreadable"


@pytest.mark.parametrize("part", ["signatures", "payload"])
@pytest.mark.parametrize("value", [None, [], "", "AAAA", [{"sig": base64.b64encode(b"x" * 70).decode()}]], ids=str)
def test_a_bundle_with_a_broken_part_is_refused(signed: Signed, part: str, value: object) -> None:
    """By our error, not by whatever the libraries raise."""
    bundle = json.loads(signed.file.read_text())
    bundle["dsseEnvelope"][part] = value
    signed.file.write_text(json.dumps(bundle))
    assert signed.refused().state == "altered"


def test_a_signature_file_that_is_a_link_or_huge_is_refused(signed: Signed) -> None:
    """It is read as what it is."""
    kept = signed.file.rename(signed.root / "kept")
    signed.file.symlink_to(kept)
    assert signed.refused().state == "unreadable"
    signed.file.unlink()
    with signed.file.open("wb") as stream:
        stream.truncate(5 << 20)
    assert signed.refused().state == "unreadable"


def test_a_directory_that_may_not_be_a_model_is_not_signed(signed: Signed) -> None:
    """The signature never covers a pickle."""
    (signed.model / "weights.pkl").write_bytes(b"x")
    with pytest.raises(IntegrityError, match="not allowed"):
        Signer.at(signed.home, {}).sign(signed.model, signed.file)


def pem(folder: Path, key: object, password: bytes = b"", mode: int = 0o600) -> Path:
    """A private key as a file."""
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    path = folder / "key.pem"
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)  # type: ignore[attr-defined]
    path.write_bytes(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("password", [b"", b"s3cret"], ids=["plain", "encrypted"])
@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_a_key_of_the_environment_signs(signed: Signed, password: bytes, curve: ec.EllipticCurve) -> None:
    """From a file, also an encrypted one, on the curves that bundles know; nothing is made in the home."""
    path = pem(signed.root, ec.generate_private_key(curve), password)
    variables = {"PILOTLINE_SIGNING_KEY": str(path), "PILOTLINE_SIGNING_KEY_PASSWORD": password.decode()}
    empty = Home.at(signed.root / "empty")
    Signer.at(empty, variables).sign(signed.model, signed.file)
    assert verify_signature(signed.model, signed.file, [public_key_at(empty, variables)])
    assert not empty.keys.exists()


def test_who_only_verifies_needs_no_private_key(signed: Signed) -> None:
    """The public half in a file is enough, and a private key is not taken for it."""
    path = signed.home.keys / "signing.pub"
    empty = Home.at(signed.root / "empty")
    assert public_key_at(empty, {"PILOTLINE_VERIFYING_KEY": str(path)}) == signed.key
    assert not empty.keys.exists()
    for bad in (signed.home.keys / "signing.pem", signed.root / "absent", signed.file):
        with pytest.raises(UserError, match="give a PEM file"):
            read_public_key(bad)


def test_keys_that_cannot_be_used_say_why(signed: Signed) -> None:
    """Absent, readable by others, of another kind, encrypted without its password, or in a module that is not here."""
    cases = [
        (signed.root / "absent.pem", "", "No such file"),
        (pem(signed.root, ec.generate_private_key(ec.SECP256R1()), mode=0o644), "", "others may read it"),
    ]
    for path, password, why in cases:
        with pytest.raises(UserError, match=why):
            Signer(str(path), password).sign(signed.model, signed.file)
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256K1())):
        with pytest.raises(UserError, match="elliptic-curve key on"):
            Signer(str(pem(signed.root, key))).sign(signed.model, signed.file)
    path = pem(signed.root, ec.generate_private_key(ec.SECP256R1()), b"s3cret")
    for password in ("", "wrong-one"):
        with pytest.raises(UserError, match="cannot be used") as refused:
            Signer(str(path), password).sign(signed.model, signed.file)
        assert "wrong-one" not in str(refused.value)
    uri = "pkcs11:token=pilotline;object=key?pin-value=s3cret-pin"
    with pytest.raises((UserError, TransientError), match=r"model-signing\[pkcs11\]|does not sign") as refused:
        Signer(uri).sign(signed.model, signed.file)
    assert "s3cret-pin" not in str(refused.value)
    with pytest.raises(UserError, match="PILOTLINE_VERIFYING_KEY"):
        public_key_at(signed.home, {"PILOTLINE_SIGNING_KEY": "pkcs11:token=pilotline;object=key"})


def test_a_home_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    """A file stands where the keys would be."""
    home = Home.at(tmp_path / "home")
    home.keys.write_text("")
    with pytest.raises(UserError, match="set PILOTLINE_SIGNING_KEY"):
        Signer.at(home, {})
    assert os.listdir(home.root) == ["keys"]
