"""Labels from a table beside the images: each image has its row's label and split, or the table is refused."""

import io
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from storage import files, manifest
from storage.kinds import RAW
from storage.uri import URI, Root
from tasks.images import user_images
from tasks.learning import recipes
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tests.image_folder import encoded
from tests.images.test_layouts import rows
from tests.ingested import ingested
from tests.s3 import Server

SPECIES = ("cat", "dog", "Ohr, großes")


def photos(folder: URI, count: int = 30) -> dict[str, str]:
    """Write images in one folder; return the class of each."""
    classes = {f"a/{number}.png": SPECIES[number % 3] for number in range(count)}
    for number, path in enumerate(classes):
        files.put(folder.child(path), encoded(number, number % 3))
    return classes


def planned(root: Root, folder: URI, labels: str, *settings: str) -> Plan:
    recipe = recipes.override(recipes.load("images-resnet18"), ["image_size=16", *settings])
    return make_plan.make_plan(storage=root.child("results"), recipe=recipe, data=folder, labels=labels, workers=0)


def csv(classes: Mapping[str, str], **columns: object) -> str:
    return pd.DataFrame({"file": list(classes), "label": list(classes.values()), **columns}).to_csv(index=False)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(str(tmp_path))


def in_parquet(table: pd.DataFrame) -> bytes:
    sink = io.BytesIO()
    table.to_parquet(sink)
    return sink.getvalue()


def test_each_image_has_the_label_and_the_split_of_its_row(root: Root) -> None:
    folder = root.child("photos")
    classes = photos(folder)
    splits = ["test" if number % 5 == 0 else "Training" for number in range(len(classes))]
    meant = {
        path: ("test" if split == "test" else "train", classes[path])
        for path, split in zip(classes, splits, strict=True)
    }
    table = pd.DataFrame({"Path": [f"./{path}" for path in classes], "species": classes.values(), "split": splits})
    tables = {
        "labels.csv": table.rename(columns={"species": "class"}).to_csv(index=False).encode("utf-8-sig"),
        "semicolons.csv": table.rename(columns={"species": "Label"}).to_csv(index=False, sep=";").encode(),
        "columns.csv": table.assign(file="", label="").to_csv(index=False).encode(),
        "photos/labels.parquet": in_parquet(table.rename(columns={"species": "label"})),
    }
    plans = []
    for name, content in tables.items():
        files.put(root.child(name), content)
        named = root.child(name) + (":Path,species,split" if name == "columns.csv" else "")
        plan = planned(root, folder, named)
        assert plan.ingest
        assert rows(ingested(plan)) == meant
        plans.append(plan)
    assert len({plan.ingest.target for plan in plans if plan.ingest}) == 1, "the same labels, the same dataset"
    assert f"--labels {root.child('labels.csv')} " in plans[0].command + " "


def test_without_a_column_split_the_content_decides_as_for_class_folders(root: Root) -> None:
    classes = photos(root.child("photos"))
    for path, name in classes.items():
        files.put(root.child(f"folders/{name}/{path}"), files.read(root.child(f"photos/{path}")))
    files.put(root.child("labels.csv"), csv(classes).encode())
    by_table = user_images.find(root.child("photos"), labels_from=root.child("labels.csv"))
    by_folder = user_images.find(root.child("folders"))
    assert by_table.classes == by_folder.classes
    assert {file.digest: (file.split, file.label) for file in by_table.files} == {
        file.digest: (file.split, file.label) for file in by_folder.files
    }
    assert "the table has no column split" in by_table.notes[0]


def test_few_rows_and_files_that_do_not_fit_are_counted_and_named(root: Root) -> None:
    classes = photos(root.child("photos"), count=300)
    text = csv(classes).replace("a/7.png,dog\n", "").replace("a/8.png", "a/gone.png")
    files.put(root.child("labels.csv"), text.encode())
    listed = user_images.find(root.child("photos"), labels_from=root.child("labels.csv"))
    left_out = {each.reason: (each.count, each.first) for each in listed.left_out}
    assert left_out["files without a label"] == (2, ("a/7.png", "a/8.png"))
    assert left_out["rows without a file"] == (1, ("a/gone.png",))
    assert len(listed.files) == 298


REFUSED: dict[str, tuple[str, str]] = {
    "no ending": ("file,label\na/0,cat\na/1,dog\n", "2 rows without a file (a/0, a/1)"),
    "outside": ("file,label\n../b/0.png,cat\n/etc/1.png,dog\n", "2 rows with a path outside of --data"),
    "no row": ("file,label\na/0.png,cat\na/1.png,dog\n", "28 files without a label (a/10.png"),
    "no label": ("BLANK", "1 files without a label (a/0.png)"),
    "two labels": ("ROWSa/0.png,dog\n", "1 files with two labels (a/0.png)"),
    "columns": ("picture,label\na/0.png,cat\n", "must be one column with the path, such as file, got picture, label"),
    "two columns": ("file,image,label\na/0.png,x,cat\n", "got file, image; name the columns: --labels"),
    "no table": ("", "cannot be read as csv"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_does_not_fit_is_refused_with_what_to_change(root: Root, case: str) -> None:
    classes = photos(root.child("photos"))
    text, message = REFUSED[case]
    files.put(
        root.child("labels.csv"),
        text.replace("ROWS", csv(classes)).replace("BLANK", csv(classes | {"a/0.png": " "})).encode(),
    )
    with pytest.raises(ValueError, match="^--labels") as refused:
        user_images.find(root.child("photos"), labels_from=root.child("labels.csv"))
    assert message in str(refused.value)


def test_labels_need_a_folder_of_images(root: Root) -> None:
    recipe = recipes.load("mnist-sample-resnet18")
    with pytest.raises(ValueError, match="--labels needs --data with a folder of images"):
        make_plan.make_plan(storage=root.child("results"), recipe=recipe, labels="labels.csv", workers=0)


def test_the_table_may_be_on_s3(s3: Server) -> None:
    root = Root(f"s3://{s3.bucket}/labels")
    classes = photos(root.child("photos"))
    files.put(root.child("photos/labels.csv"), csv(classes).encode())
    plan = planned(root, root.child("photos"), root.child("photos/labels.csv"))
    raw = ingested(plan)
    assert {path: label for path, (_, label) in rows(raw).items()} == classes
    assert manifest.load(raw).statistics_of(RAW).sources[1].url == root.child("photos/labels.csv")
