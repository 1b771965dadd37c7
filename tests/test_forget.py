"""Forgetting an image leaves no byte of it, and models as if it had never been there."""

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import app
from storage import champions, failpoints, files, manifest, registry, uses
from storage.admin import forgetting
from storage.kinds import EMBEDDINGS, EXPORT, REPORT, CheckpointURI, EmbeddingsURI
from storage.manifest import Damaged
from storage.uri import Root
from tasks.images import embedding_rows
from tasks.learning import decode
from tests import committed
from tests.image_folder import CLASSES, picture

SIDE = 32
NO_RAY = ("--workers", "0")
IMAGE = f"{CLASSES[1]}/5.png"


def command(*words: str, code: int = 0) -> Any:
    """What a command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert app.main(words=[*words, "--json"]) == code
    return json.loads(output.getvalue()) if not code else None


def train(photos: Path, root: Root, *settings: str) -> CheckpointURI:
    """The champion that a run makes."""
    small = ("--set", f"image_size={SIDE}", "--set", "validation_fraction=0.2", *settings)
    done = command("run", "--recipe", "images-probe", "--data", str(photos), "--storage", root, *NO_RAY, *small)
    assert done["promoted"]
    return CheckpointURI(done["champion"])


def write(folder: Path) -> Path:
    """Photographs of three classes, among them IMAGE, also as another file."""
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            picture(100 * label + number, label).save(folder / name / f"{number}.png")
    picture(105, 1).save(folder / CLASSES[1] / "copy.bmp")
    return folder


def forget(root: Root, image: object, *words: str, code: int = 0) -> Any:
    return command("forget", str(image), "--storage", root, *NO_RAY, *words, code=code)


def needles(root: Root, image: Path) -> dict[str, bytes]:
    """What must not be found: the image, what was made of it, and digests."""
    content = image.read_bytes()
    decoded = decode.decoded(content, SIDE, 3)
    digest = hashlib.sha256(decoded.pixels).digest()[:16]
    shelf = root.child(EMBEDDINGS.folder)
    rows = embedding_rows.read(EmbeddingsURI(shelf.child(files.children(shelf)[0])))
    found = {"file": content, "pixels": decoded.pixels, "digest": digest}
    found["embedding"] = rows.vectors[rows.digests.to_pylist().index(digest)].tobytes()
    found["sha256"] = hashlib.sha256(content).hexdigest().encode()
    return found | {"hex": digest.hex().encode()}


def places(root: Root, needles: dict[str, bytes]) -> dict[str, set[str]]:
    """The files below `root` with each of the needles, in their bytes or, of Parquet, in a column."""
    found: dict[str, set[str]] = {name: set() for name in needles}
    for path, content in committed.listing(root).items():
        parts = [content]
        if path.endswith(".parquet"):
            columns = pq.read_table(pa.BufferReader(content)).combine_chunks().columns
            parts += [bytes(buffer) for column in columns for buffer in column.chunk(0).buffers() if buffer]
        for name, needle in needles.items():
            found[name] |= {path} if any(needle in part for part in parts) else set()
    return found


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, prefect_server: None) -> Path:
    return write(tmp_path_factory.mktemp("forget") / "photos")


@pytest.fixture(scope="module")
def trained(photos: Path) -> Root:
    """A root with a champion made of all photographs; IMAGE and its copy lie beside them since."""
    root = Root(str(photos.parent / "root"))
    train(photos, root)
    (photos / IMAGE).rename(photos.parent / "5.png")
    (photos / CLASSES[1] / "copy.bmp").rename(photos.parent / "copy.bmp")
    return root


@pytest.fixture(scope="module")
def clean(trained: Root, photos: Path) -> CheckpointURI:
    """The champion of the folder as it is without the image, in a root of its own."""
    return train(photos, Root(str(photos.parent / "clean")))


@pytest.fixture
def copy(trained: Root, tmp_path: Path) -> Root:
    """A root of the test's own."""
    shutil.copytree(trained, tmp_path / "root")
    return Root(str(tmp_path / "root"))


def test_nothing_is_left_of_an_image_and_its_champion_is_that_of_a_folder_without_it(
    each_root: Root, photos: Path, tmp_path: Path, clean: CheckpointURI
) -> None:
    root, image, others = each_root, photos.parent / "5.png", tmp_path / "photos"
    shutil.copytree(photos, others)
    shutil.copy(image, others / IMAGE)
    shutil.copy(photos.parent / "copy.bmp", others / CLASSES[1])
    old = train(others, root)
    new = tmp_path / "new"
    new.mkdir()
    shutil.copy(photos.parent / "copy.bmp", new)
    command("predict", "--data", str(new), "--storage", root, *NO_RAY)
    command("export", old, "--storage", root)
    committed.write_scratch(root, old)
    sought = needles(root, image)
    before = places(root, sought)
    assert {name for name, found in before.items() if not found} == {"file", "hex"}
    (others / IMAGE).unlink()
    forget(root, image, code=2)
    (others / CLASSES[1] / "copy.bmp").unlink()
    planned = forget(root, image, "--dry-run")
    done = forget(root, image)
    assert [*planned["champions"].values()] == [old] and len(planned["deleted"]) == len(done["deleted"])
    (model,) = champions.registered_models(root)
    champion = registry.champion(root, model)
    assert champion and champion.name == clean.name != old.name
    assert registry.weights_of(champion) == registry.weights_of(clean)
    assert registry.history(root, model)[-1].verdict == "promoted"
    certificate = f"forgotten/{hashlib.sha256(image.read_bytes()).hexdigest()}.json"
    names = {"sha256": {certificate}, "hex": {certificate}}
    assert places(root, sought) == {name: names.get(name, set()) for name in sought}
    assert {path.rpartition("/")[0] for found in before.values() for path in found} & done["deleted"].keys()
    assert len(files.children(root.child(EXPORT.folder))) == len(files.children(root.child(REPORT.folder))) == 1
    after = committed.listing(root)
    assert forget(root, image) == done and committed.listing(root) == after


@contextlib.contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, point: str, at: str) -> Iterator[None]:
    """Interrupt the program when it reaches `point` with a URI that has `at`."""

    def kill(reached: str, uri: str) -> None:
        if (reached, at in uri) == (point, True):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "handler", kill)
        yield


@pytest.mark.parametrize(
    ("point", "at"),
    [("write", "/checkpoints/"), ("written", "/registry/"), ("remove", "/datasets/raw/")],
)
def test_same_command_ends_the_same_after_a_kill(
    copy: Root, photos: Path, clean: CheckpointURI, monkeypatch: pytest.MonkeyPatch, point: str, at: str
) -> None:
    (model,) = champions.registered_models(copy)
    command("export", f"champion:{model}", "--storage", copy)
    with killed(monkeypatch, point, at):
        forget(copy, photos.parent / "5.png", code=130)
    done = forget(copy, photos.parent / "5.png")
    assert done["finished"] and [*done["replaced"].values()] == [f"checkpoints/{clean.name}"]
    expected = {path for path in committed.listing(Root(str(photos.parent / "clean"))) if "report" not in path}
    made = {path for path in committed.listing(copy) if "report" not in path and not path.startswith(("reg", "forg"))}
    exports = {path for path in made if path.startswith(EXPORT.folder)}
    kept = made - exports
    (export,) = {path.rpartition("/")[0] for path in exports if path.endswith("_manifest.json")}
    assert any(parent.uri.endswith(clean.name) for parent in manifest.load(copy.child(export)).parents.values())
    assert kept == {path for path in expected if not path.startswith(("registry", "runs"))}


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("0" * 64, "no result below"),
        ("/nowhere.png", "which does not exist"),
        (f"photos/{CLASSES[0]}/1.png", f"is still in {{}}: {CLASSES[0]}/1.png; move it elsewhere"),
    ],
)
def test_what_cannot_be_forgotten_is_refused(
    copy: Root, photos: Path, capsys: pytest.CaptureFixture[str], image: str, says: str
) -> None:
    forget(copy, image if len(image) == 64 else photos.parent / image, code=2)
    assert says.format(photos) in capsys.readouterr().err


def test_an_image_of_which_only_an_interrupted_run_knows_is_forgotten(
    tmp_path: Path, prefect_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, photos = Root(str(tmp_path / "root")), write(tmp_path / "photos")
    with killed(monkeypatch, "write", "/datasets/raw/"):
        command("run", "--recipe", "images-probe", "--data", str(photos), "--storage", root, *NO_RAY, code=130)
    for marker in files.children(root.child(uses.FOLDER)):
        files.remove(root.child(f"{uses.FOLDER}/{marker}"))
    done = forget(root, photos / IMAGE)
    assert done["finished"] and not done["deleted"] and not files.children(root.child("runs"))


def test_root_in_use_and_champion_that_began_with_another_are_refused(
    copy: Root, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = copy.child(f"{uses.FOLDER}/a.json")
    files.put(marker, b"[]")
    forget(copy, photos.parent / "5.png", code=2)
    assert f"may continue: {marker}; wait for it, or delete" in capsys.readouterr().err
    files.remove(marker)
    (model,) = champions.registered_models(copy)
    train(photos, copy, "--set", f"start=champion:{model}", "--register-as", "warm")
    before = committed.listing(copy)
    forget(copy, photos.parent / "5.png", code=2)
    assert "start must not be champion" in capsys.readouterr().err
    assert {path for path in committed.listing(copy) if not path.startswith("runs/")} == {
        path for path in before if not path.startswith("runs/")
    }


def test_champions_count_as_they_are_when_the_command_continues(
    copy: Root, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, (model,) = photos.parent / "5.png", champions.registered_models(copy)
    old = f"checkpoints/{champions.require_champion(copy, model).name}"
    begun = {
        "sha256": hashlib.sha256(image.read_bytes()).hexdigest(),
        "deleted": {"reports/any-0123456789ab": "0" * 64},
    }
    forgetting.write(copy, forgetting.Certificate.model_validate(begun))
    before = committed.listing(copy)
    forget(copy, image, code=2)
    assert f"the champion of {model} was made" in capsys.readouterr().err and committed.listing(copy) == before
    by_hand = CheckpointURI(committed.result(copy, "checkpoint", "by-hand"))
    champions.promote(copy, by_hand, name=model)
    done = forget(copy, image)
    assert done["finished"] and old in done["deleted"] and done["replaced"] == {}
    assert files.children(by_hand.parent) == [by_hand.name]


def test_result_whose_parent_is_gone_is_refused_unless_forget_deleted_that(tmp_path: Path) -> None:
    model = committed.run(root := Root(str(tmp_path)), "any")
    files.remove(model.prepared)
    with pytest.raises(Damaged, match=rf"{model.prepared}, of which .* was made, is gone; restore it, or delete"):
        forgetting.results(root)
    assert model.checkpoint in {folder.uri for folder in forgetting.results(root, deleted=[model.prepared])}
