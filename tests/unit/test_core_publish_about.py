"""A published folder is about one thing: that is covered by its manifest, and asked for by whoever uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.core.errors import IntegrityError
from components.core.publish import is_whole, publishing, read_manifest, verify

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _published(folder: Path, **about: Any) -> Path:
    with publishing(folder, **about) as staging:
        (staging / "weights").write_bytes(b"weights")
    return folder


def test_a_folder_of_another_job_is_not_whole_for_this_one(tmp_path: Path) -> None:
    """Every byte verifies, and yet it is somebody else's: the line names both."""
    folder = _published(tmp_path / "final", key="a" * 64)
    assert is_whole(folder, key="a" * 64)
    assert is_whole(folder)
    assert not is_whole(folder, key="b" * 64)
    with pytest.raises(IntegrityError, match="belongs to key aaaaaaaaaaaa and not bbbbbbbbbbbb"):
        verify(folder, key="b" * 64)


def test_about_edited_alone_is_found(tmp_path: Path) -> None:
    """The name of the job cannot be changed without the digest that covers it, nor that digest be left out."""
    folder = _published(tmp_path / "final", key="a")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"about": {"key": "b"}}))
    assert not is_whole(folder)
    assert not is_whole(folder, key="b")
    manifest.pop("about_digest")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert is_whole(folder)  # as folders were published before
    assert not is_whole(folder, key="a")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["files", "digest", "about", "about_digest"]), JSON) | JSON)
def test_whatever_json_a_manifest_is_it_ends_in_one_kind_of_error(tmp_path_factory: Any, value: Any) -> None:
    """Wrong shapes are damage, which readers know how to pass over; nothing else comes out."""
    folder = tmp_path_factory.mktemp("published") / "x"
    manifest = json.loads((_published(folder) / "manifest.json").read_text())
    for broken in (value, manifest | value if isinstance(value, dict) else value):
        (folder / "manifest.json").write_text(json.dumps(broken))
        if is_whole(folder):
            assert read_manifest(folder)["files"] == manifest["files"]
        else:
            with pytest.raises(IntegrityError, match=r"\A[^\n]+\Z"):
                verify(folder)
