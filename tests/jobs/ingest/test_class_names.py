"""Classes of Parquet files are matched by name: whatever numbers a file uses, no row changes its class."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from storage import manifest, tables
from storage.uri import DatasetURI, Root
from tasks.jobs.backends.in_process import InProcessBackend
from tasks.jobs.ingest import class_names
from tasks.jobs.ingest.class_names import FileLabels
from tasks.jobs.preprocess import job as preprocess
from tasks.learning import images
from tests.image_folder import encoded
from tests.jobs import raw as jobs
from tests.jobs.ingest.test_parquet_files import ingested_files
from tests.jobs.ingest.test_parquet_reader import parquet

CAT, DOG = "cat", "dog"
NAMES = {"classes": '["cat", "dog"]'}
OTHERWISE = {"classes": '["dog", "cat"]'}


def found(path: str, labels: list[Any], names: list[str] | None = None, *, unlabelled: int = 0) -> FileLabels:
    """What a survey finds of one file of two rows for each label."""
    split, rows = path.partition("-")[0], 2 * len(labels) + unlabelled
    counts = dict.fromkeys(labels, 2)
    return FileLabels(path=path, split=split, rows=rows, counts=counts, names=names, unlabelled=unlabelled)


def content(labels: Sequence[Any], metadata: dict[str, str] | None, first: int) -> bytes:
    pictures = [encoded(first + number, number % 2) for number in range(len(labels))]
    return parquet(metadata, image=pictures, label=labels)


def ingested(root: Root, given: Mapping[str, tuple[Sequence[Any], dict[str, str] | None]]) -> DatasetURI:
    """The raw dataset of Parquet files with these labels and metadata."""
    contents = {
        path: content(labels, metadata, 100 * number) for number, (path, (labels, metadata)) in enumerate(given.items())
    }
    return ingested_files(root, contents)


def named(raw: DatasetURI, split: str) -> list[str | None]:
    """The class of each row, by name."""
    made = manifest.load(raw)
    classes = class_names_of(made)
    labels = tables.read_split(raw, split)["label"].to_pylist()
    return [None if label is None else classes[label] for label in labels]


def class_names_of(made: manifest.Manifest) -> list[str]:
    return list(images.classes_of(made.columns["metadata"]))


@pytest.fixture
def here(tmp_path: Any) -> Root:
    return Root(str(tmp_path))


MEANT = [CAT, DOG, DOG, CAT]
"""What every file below says of its four rows, each in its own way."""


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (([0, 1, 1, 0], NAMES), ([1, 0, 0, 1], OTHERWISE)),
        (([1, 0, 0, 1], OTHERWISE), (MEANT, None)),
        ((MEANT, None), ([0, 1, 1, 0], NAMES)),
        ((MEANT, NAMES), (MEANT, OTHERWISE)),
    ],
    ids=["numbered otherwise", "text in test", "text in train", "text beside names"],
)
def test_splits_that_number_their_classes_otherwise_are_mapped_by_name(here: Root, train: Any, test: Any) -> None:
    raw = ingested(here, {"train-0.parquet": train, "test-0.parquet": test})
    assert named(raw, "train") == named(raw, "test") == MEANT
    first = [DOG, CAT] if train[1] == OTHERWISE else [CAT, DOG]
    assert class_names_of(manifest.load(raw)) == first, "the order is that of train"


def test_files_of_one_split_that_number_their_classes_otherwise_are_mapped_by_name(here: Root) -> None:
    given = {"train-0.parquet": ([0, 1], NAMES), "train-1.parquet": ([0, 1], OTHERWISE)}
    raw = ingested(here, given | {"test-0.parquet": ([0, 1], {"classes": '["dog", "cat", "owl"]'})})
    assert (named(raw, "train"), named(raw, "test")) == ([CAT, DOG, DOG, CAT], [DOG, CAT])


def test_a_number_beyond_the_names_of_its_file_is_of_no_class_whatever_others_call_it(here: Root) -> None:
    given = {
        "train-0.parquet": ([0, 1, 2], {"classes": '["cat", "dog", "owl"]'}),
        "train-1.parquet": ([0, 1, 2], NAMES),
    }
    raw = ingested(here, given | {"test-0.parquet": ([0, 1], NAMES)})
    assert tables.read_split(raw, "train")["label"].to_pylist() == [0, 1, 2, 0, 1, -1]


@pytest.mark.parametrize(
    ("surveyed", "says"),
    [
        (
            [found("train-0.parquet", [CAT, DOG], [CAT, DOG]), found("test-0.parquet", ["cats"], ["cats", DOG])],
            r"^test-0\.parquet has rows of class cats, .* its classes are \[cats, dog\], those of .* \[cat, dog\];",
        ),
        (
            [found("train-0.parquet", ["0", "1"]), found("test-0.parquet", ["0", "7"])],
            r"^test-0\.parquet has rows of class 7, .* \[0, 7\], .* \[0, 1\]",
        ),
        (
            [found("train-0.parquet", ["0", "1"]), found("test-0.parquet", [], unlabelled=9)],
            "^no row of split test has a label: all 9 are -1 or empty, as in test-0.parquet; add labels",
        ),
        (
            [found("train-0.parquet", ["1"], unlabelled=2), found("test-0.parquet", ["1"])],
            "two different .* -1 means no",
        ),
    ],
)
def test_files_that_contradict_each_other_are_refused_with_both_lists(surveyed: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        class_names.of_files(surveyed)
    assert "\n" not in str(caught.value)


def test_accents_that_are_written_in_two_ways_are_one_name(here: Root) -> None:
    raw = ingested(
        here, {"train.parquet": (["e\u0301", "z", "\u00e9"], None), "test.parquet": (["z", "e\u0301"], None)}
    )
    assert (named(raw, "train"), named(raw, "test")) == (["\u00e9", "z", "\u00e9"], ["z", "\u00e9"])


@pytest.mark.parametrize(
    ("labels", "metadata"),
    [([0, 1, -1, None], NAMES), ([CAT, DOG, "", None], None)],
    ids=["names", "text"],
)
def test_rows_without_a_label_become_no_class_and_are_left_out_counted_and_named(
    here: Root, capsys: pytest.CaptureFixture[str], labels: list[Any], metadata: dict[str, str] | None
) -> None:
    usual = [*labels[:2] * 8]
    given = {"train-0.parquet": (usual, metadata), "train-1.parquet": ([*labels, *usual], metadata)}
    raw = ingested(here, given | {"test-0.parquet": ([*usual, labels[2]], metadata)})
    told = capsys.readouterr().out
    assert "WARNING: 2 rows of train without a label (-1 or empty) excluded, the first in train-1.parquet" in told
    assert "WARNING: 1 row of test without a label" in told
    made = manifest.load(raw)
    assert len(class_names_of(made)) == 2 and made.statistics["unlabelled"] == 3
    spec = jobs.to_prepare(here, raw, max_quarantined=0.2)
    preprocess.run(spec, InProcessBackend())
    statistics = manifest.load(spec.target).statistics
    assert statistics["quarantined"] == {"label is missing": 3}
    assert statistics["quarantined_files"] == [
        "test-0.parquet (1 of 17 rows have no label)",
        "train-1.parquet (2 of 20 rows have no label)",
    ]
