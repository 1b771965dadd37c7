"""References to results below a storage root, and how they are resolved after the root has moved."""

import os
from pathlib import Path

import pytest

from storage import reference
from storage.kinds import KINDS
from storage.uri import URI, Root


def test_result_below_the_root_is_called_by_shelf_and_name_and_found_from_a_moved_one(root: Root) -> None:
    for shelf in (kind.folder for kind in KINDS.values()):
        uri = root.child(f"{shelf}/model-0123456789ab")
        assert reference.of(uri, root=root) == f"{shelf}/model-0123456789ab"
        assert reference.resolve(reference.of(uri, root=root), root=Root("/moved")) == f"/moved/{shelf}/{uri.name}"
        assert reference.root_of(uri) == root


@pytest.mark.parametrize(
    "uri", ["/other/checkpoints/a-1", "s3://bucket/checkpoints/a-1", "/photos", "s3://checkpoints/x", "/other"]
)
def test_what_lies_elsewhere_keeps_its_uri(root: Root, uri: str) -> None:
    assert reference.of(URI(uri), root=root) == uri
    assert reference.resolve(uri, root=root) == URI(uri)


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/a/b", "registry/a", "datasets/a", "checkpoints/../a", ""])
def test_what_is_no_reference_is_refused(root: Root, name: str) -> None:
    with pytest.raises(ValueError, match="must not contain|checkpoints/NAME"):
        reference.resolve(name, root=root)


def test_root_behind_a_link_is_the_same_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    real, link = Root(str(tmp_path / "real")), Root(str(tmp_path / "link"))
    assert reference.of(link.child("checkpoints/a-1"), root=real) == "checkpoints/a-1"
    assert reference.resolve(link.child("checkpoints/a-1"), root=real) == real.child("checkpoints/a-1")
