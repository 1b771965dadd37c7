"""The report page: complete in itself, true to its numbers, safe with any text."""

import dataclasses
import datetime
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

from storage.decision import Decision
from storage.uri import CheckpointURI
from tasks.comparing import data_changes
from tasks.jobs.preprocess import near_duplicates
from tasks.jobs.preprocess.data_problems import DataProblem
from tasks.learning import slices
from tasks.learning.metrics import wilson
from tasks.report_page import (
    Picture,
    ReportData,
    accuracy_interval,
    chosen_confidence,
    number,
    recall_interval,
    render,
    share,
)
from tasks.report_page.lineage_diagram import LineageStep, draw

HOSTILE = '"><script>alert(1)</script><img src="https://evil.example/x.png"> & \'$x^2$'
DIGITS = tuple("0123456789")
WHEN = datetime.datetime(2026, 11, 23, 12, 50, tzinfo=datetime.UTC)


class Page(HTMLParser):
    """Every start tag of a page with its attributes, and all of its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def data() -> ReportData:
    return fake_data()


def fake_data(classes: tuple[str, ...] = DIGITS, *, channels: int = 1, num_epochs: int = 5) -> ReportData:
    """What a run on 10 000 test rows might give, the same each time."""
    generator = np.random.default_rng(0)
    confusion = fake_confusion(generator, len(classes))
    recalls, precisions = np.diag(confusion) / confusion.sum(1), np.diag(confusion) / confusion.sum(0)
    accuracy = float(np.trace(confusion) / confusion.sum())
    metrics = {"test_accuracy": accuracy, "balanced_accuracy": accuracy - 0.01, "macro_f1": accuracy - 0.02}
    metrics |= {"test_loss": 0.0231, "expected_calibration_error": 0.0147, "num_rows": 10000}
    return ReportData(
        recipe_name="mnist-resnet18",
        data_set="mnist",
        sample_notice=None,
        decision=fake_decision(metrics | {"test_accuracy": accuracy - 0.0021, "test_loss": 0.0312}),
        metrics=metrics,
        history=fake_history(num_epochs),
        best_epoch=max(1, num_epochs - 1),
        training_seconds=83.4,
        classes=classes,
        per_class=[
            {"class_name": name, "precision": precision, "recall": recall, "f1": recall, "support": int(support)}
            for name, precision, recall, support in zip(classes, precisions, recalls, confusion.sum(1), strict=True)
        ],
        confusion=confusion.tolist(),
        calibration=fake_calibration(),
        coverage=fake_coverage(10000, round(10000 * accuracy)),
        samples=fake_pictures(generator, classes, channels=channels, num=24, wrong=False),
        mistakes=fake_pictures(generator, classes, channels=channels, num=16, wrong=True),
        lineage=fake_lineage(),
        timings=[("download", 4.2), ("preprocess", 6.9), ("train", 83.4), ("predict", 8.1), ("evaluate", 0.7)],
        parameters={"name": "mnist-resnet18", "epochs": num_epochs, "learning_rate": 0.002, "precision": "auto"},
        command="python flows/pipeline.py --storage s3://models/mnist --workers 2 --set epochs=5",
        producer={"data-to-model": "0.1.0", "ray": "2.50.0", "torch": "2.9.0", "git": None},
        against=fake_against(),
        training_images=tuple(
            (picture.image, picture.label)
            for picture in fake_pictures(generator, classes, channels=channels, num=32, wrong=False)
        ),
    )


def with_data(data: ReportData, *, name: str = "test/cats_of_the_neighbours/IMG_20261123.jpg") -> ReportData:
    """The page with all that the sections on the data and on slices can have; `name` is any text of the person's."""
    generator = np.random.default_rng(1)
    pictures = [near_duplicates.picture(image) for image in generator.integers(0, 256, (20, 64, 64, 3), np.uint8)]
    of_each = max(1, min(6, 96 // len(data.classes)))
    sizes = [3000 // (number + 2) for number in range(len(data.classes))]
    counts = {split: dict(zip(data.classes, sizes, strict=True)) for split in ("train", "validation", "test")}
    left_out = {"class": name, "place": name, "reason": name, "image": pictures[0]}
    pair: dict[str, Any] = {f"{side}_image": pictures[number] for number, side in enumerate(("first", "second"))}
    pair |= {f"{side}_{what}": name for side in ("first", "second") for what in ("place", "class")}
    known = pd.DataFrame({"camera": [name] * 40 + ["none"] * 400, "folder": generator.choice(["a", "b"], 440)})
    known.loc[0, "folder"] = "rare"
    found = slices.find(known, np.zeros(440, int), np.arange(440) > 20)
    return dataclasses.replace(
        data,
        class_counts=counts,
        class_samples=dict.fromkeys(data.classes[:96], pictures[:of_each]),
        left_out=(left_out, left_out | {"class": None, "image": None}) * 5,
        near_duplicates=tuple({"kind": kind, "distance": 0.031} | pair for kind in near_duplicates.KINDS for _ in "12"),
        slices=found,
    )


def fake_against(
    name: str = "test/cats of the neighbours/2026-11-23_holiday_pictures/IMG_20261123.jpg",
) -> dict[str, Any]:
    """What `diff` says of two models, with a change of every sort."""
    change = {"file": name, "class": name, "split": "train", "file_before": name, "class_before": name}
    row = {"file": name, "label": name} | {f"prediction_{side}": name for side in "ab"}
    rows = [row | {"probability_a": 0.9, "probability_b": 0.8}] * 30
    accuracy = {"a": 0.95, "b": 0.96, "difference": 0.01, "lower": -0.01, "upper": 0.03, "p_value": 0.3}
    return {
        "a": {"uri": f"s3://models/{name}"},
        "changes": [f"recipe: {name} 1 -> 2"] * 3,
        "data": {"counts": dict.fromkeys(data_changes.SORTS, 60)} | dict.fromkeys(data_changes.SORTS, [change] * 60),
        "test_rows": {
            "rows": 1000,
            "note": name,
            "metrics": {"test_accuracy": accuracy},
            "better": rows,
            "worse": rows,
        },
        "notes": {"test_rows": name},
    }


def fake_decision(champion: dict[str, float]) -> Decision:
    return Decision(
        number=2,
        champion=CheckpointURI("s3://models/mnist/checkpoints/mnist-resnet18-0123456789ab"),
        challenger=CheckpointURI("s3://models/mnist/checkpoints/mnist-resnet18-0123456789ab"),
        evaluation="",
        promoted=True,
        reason="Test accuracy is at least the minimum, and 0.0021 above the champion's.",
        gate={"metric": "accuracy", "minimum": 0.95, "tolerance": 0.001},
        metrics={"champion": champion},
    )


def with_decision(data: ReportData, **changes: Any) -> ReportData:
    return dataclasses.replace(data, decision=data.decision.model_copy(update=changes))


def fake_confusion(generator: np.random.Generator, num_classes: int) -> np.ndarray:
    confusion = generator.poisson(12 / num_classes, (num_classes, num_classes))
    np.fill_diagonal(confusion, generator.integers(960, 1010, num_classes))
    confusion[1, 0], confusion[0, 2] = 75, 33
    return confusion


def fake_history(num_epochs: int) -> list[dict[str, float]]:
    """As the training records it: every number is a float."""
    return [
        {
            "epoch": float(epoch),
            "step": 422.0 * epoch,
            "train_loss": 0.25 + 0.6 / epoch,
            "train_accuracy": 0.985 - 0.08 / epoch,
            "validation_loss": 0.02 + 0.1 / epoch + 0.002 * epoch,
            "validation_accuracy": 0.994 - 0.02 / epoch,
            "learning_rate": 0.002 / epoch,
            "backbone_learning_rate": 0.0 if epoch == 1 else 0.0002 / epoch,
            "seconds": 30.0 + epoch,
            "data_wait_s": 3.1 if epoch == 2 else 0.31,
            "checkpoint_wait_s": 0.0 if epoch == 1 else 0.062,
        }
        for epoch in range(1, num_epochs + 1)
    ]


def fake_calibration() -> list[dict[str, float | None]]:
    bins: list[dict[str, float | None]] = []
    for index, count in enumerate((0, 0, 1, 4, 11, 25, 31, 48, 160, 9720)):
        middle = (index + 0.5) / 10
        lower, upper = index / 10, (index + 1) / 10
        confidence, accuracy = (middle + 0.01, min(1, middle + 0.03)) if count else (None, None)
        bins.append({"lower": lower, "upper": upper, "count": count, "confidence": confidence, "accuracy": accuracy})
    return bins


def fake_coverage(rows: int, right: int) -> list[dict[str, float]]:
    """From all rows down to a fifth, of which all are right."""
    kept = [round(rows * (1 - 0.8 * (step / 99) ** 2)) for step in range(100)]
    wrong = [round((rows - right) * (1 - step / 99) ** 2) for step in range(100)]
    return [{"confidence": step / 100, "rows": kept[step], "right": kept[step] - wrong[step]} for step in range(100)]


def fake_pictures(
    generator: np.random.Generator, classes: tuple[str, ...], *, channels: int, num: int, wrong: bool
) -> tuple[Picture, ...]:
    side = 28 if channels == 1 else 32
    return tuple(
        Picture(
            image=generator.integers(0, 256, (side, side, channels), dtype=np.uint8),
            label=classes[index % len(classes)],
            prediction=classes[(index + wrong) % len(classes)],
            probability=float(1 - 0.6 * generator.random() ** 4),
            id=37 * index,
        )
        for index in range(num)
    )


def fake_lineage() -> tuple[LineageStep, ...]:
    files = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz")
    raw = tuple((name, f"sha256 {64 * 'a'}\nfrom https://mirror.example/mnist/{name}") for name in files)
    places = {
        "Raw dataset": "datasets/raw/mnist",
        "Prepared dataset": "datasets/prepared/mnist",
        "Checkpoint": "checkpoints/mnist-resnet18",
        "Predictions": "predictions/mnist-resnet18",
        "Evaluation": "evaluations/mnist-resnet18",
    }
    facts = [("train rows", "54,000"), ("test rows", "10,000"), ("quarantined", "2: label out of range\n1: empty")]
    steps = [
        LineageStep(
            title=title,
            stage="made",
            parents=(("Raw files", *places)[index],),
            uri=f"s3://models/team/{place}-0123456789a{index}",
            fingerprint=f"0123456789a{index}",
            facts=tuple(facts) if index == 1 else (("test rows", "10,000"),),
        )
        for index, (title, place) in enumerate(places.items())
    ]
    return (LineageStep(title="Raw files", facts=raw), *steps)


def test_same_data_gives_the_same_bytes(data: ReportData) -> None:
    assert render(data).encode() == render(fake_data()).encode()


@pytest.mark.parametrize("channels", [1, 3])
def test_page_asks_nobody_for_anything(channels: int) -> None:
    html = render(fake_data(channels=channels))
    page = Page(html)
    addresses = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "srcset", "data", "action")
    ]
    addresses += re.findall(r"url\(\s*[\"']?([^)\"']*)", html)
    assert addresses
    others = [address for address in addresses if not (address or "").startswith(("data:", "#"))]
    assert others == ["../../index.html"], "the page of all runs, beside it in storage"
    assert "@import" not in html
    assert not page.all("script")
    assert len(html) < 1_000_000


def test_figures_on_the_page_are_those_given(data: ReportData) -> None:
    text = Page(render(data)).text
    accuracy = data.metrics["test_accuracy"]
    for shown in (f"Test accuracy {accuracy:.4f}", f"{100 * accuracy:.2f} % of 10,000 rows", "Test loss 0.0231"):
        assert shown in text
    for shown in ("Calibration error 0.0147", "Test rows 10,000", "Best epoch 4 of 5", "Training 83.4 s"):
        assert shown in text
    for row in data.per_class:
        shares = " ".join(f"{row[name]:.4f}" for name in ("precision", "recall", "f1"))
        assert f"{row['class_name']} {shares} {number(row['support'])} {recall_interval(row)}" in text
    for name in ("balanced accuracy", "macro F1"):
        value = share(data.metrics[name.lower().replace(" ", "_")])
        assert f"{name} {value}" in text and f"{name[0].upper()}{name[1:]} {value}" in text
    for name, counts in zip(data.classes, data.confusion, strict=True):
        assert " ".join(map(str, [name, *counts])) in text
    for row in data.history:
        losses = row["train_loss"], row["train_accuracy"], row["validation_loss"], row["validation_accuracy"]
        assert "{:.0f} {:,.0f} {:.4f} {:.4f} {:.4f} {:.4f}".format(row["epoch"], row["step"], *losses) in text.replace(
            " ★", ""
        )
    assert "quarantined: 2: label out of range 1: empty" in text
    assert "95 % interval (Wilson): 0.9" in text
    for value in ("0.002", "--set epochs=5", "2.50.0", data.decision.reason, *(step.uri for step in data.lineage)):
        assert value in text


def test_coverage_is_told_for_the_lowest_confidence_at_which_99_percent_are_right(data: ReportData) -> None:
    text = Page(render(data)).text
    row = next(row for row in data.coverage if row["right"] >= 0.99 * row["rows"])
    assert data.coverage[0]["right"] < 0.99 * data.coverage[0]["rows"]
    percents = [math.floor(1000 * share) / 10 for share in (row["rows"] / 10000, row["right"] / row["rows"])]
    at = f"{row['confidence']:.2f}"
    assert f"At {at} and above: {percents[0]:g} % of images, {percents[1]:g} % of them right." in text
    assert f"predict --min-confidence {at} leaves the class of the others empty" in text
    assert f"{at} ★ {number(int(row['rows']))} {percents[0]:g} % {percents[1]:g} %" in text


@pytest.mark.parametrize(
    ("precisions", "index"), [((0.5, 0.99, 1.0), 1), ((0.995, 0.998, 1.0), 2), ((0.5, 0.8, 0.7), 1), ((0.5, 1.0, 0), 1)]
)
def test_confidence_of_the_sentence_reaches_its_goal_or_is_the_best_there_is(
    precisions: tuple[float, ...], index: int
) -> None:
    coverage = [{"rows": 1000 * (share > 0), "right": 1000 * share} for share in precisions]
    assert chosen_confidence(coverage) is coverage[index]


def test_calibration_is_shown_before_and_after_a_temperature(data: ReportData) -> None:
    assert "temperature" not in Page(render(data)).text
    before = [{"lower": 0.9, "upper": 1.0, "count": 100, "confidence": 0.98, "accuracy": 0.9}]
    text = Page(render(dataclasses.replace(data, temperature=1.4321, uncalibrated=before))).text
    assert "a temperature of 1.432, which was fitted on validation rows; without it the error would be 0.0800" in text
    assert "Reliability by confidence, before and after the temperature" in text


def test_class_without_test_rows_has_no_interval_and_a_rare_one_a_wide_one() -> None:
    assert [recall_interval({"recall": 0.75, "support": support}) for support in (0, 4, 400)] == [
        "–", "0.30 to 0.95", "0.71 to 0.79"
    ]  # fmt: skip


@pytest.mark.parametrize(("git", "is_dirty"), [(40 * "a", False), (f"{40 * 'a'} dirty 0123456789ab", True)])
def test_code_that_is_in_no_commit_is_not_checked_out_as_if_it_were(git: str, is_dirty: bool) -> None:
    data = fake_data()
    text = render(dataclasses.replace(data, producer={**data.producer, "git": git}))
    assert f"git checkout {40 * 'a'}\n" in text
    assert ("There were uncommitted changes (digest 0123456789ab)" in text) == is_dirty


@pytest.mark.parametrize(("value", "shown"), [(1, "1.0000"), (0.999951, ">0.9999"), (0.99994, "0.9999"), (0, "0.0000")])
def test_share_below_one_is_never_shown_as_all(value: float, shown: str) -> None:
    assert share(float(value)) == shown


def test_page_says_when_and_by_whom_was_decided_where_that_is_known(data: ReportData) -> None:
    assert "Decided on" not in render(data)
    text = Page(render(with_decision(data, decided=WHEN, author="ada, run 7"))).text
    assert "Decided on 2026-11-23 12:50 UTC by ada, run 7." in text


@pytest.mark.parametrize("num_classes", [10, 100])
def test_hostile_names_are_escaped(num_classes: int) -> None:
    classes = tuple(f"{HOSTILE}{index}" for index in range(num_classes))
    data = fake_data(classes)
    changes = {"reason": HOSTILE, "author": HOSTILE, "gate": data.decision.gate | {HOSTILE: HOSTILE}}
    hostile_step = LineageStep(title=HOSTILE, uri=f"s3://b/{HOSTILE}", fingerprint=HOSTILE, facts=((HOSTILE, HOSTILE),))
    data = with_data(with_decision(data, decided=WHEN, **changes), name=HOSTILE)
    html = render(
        dataclasses.replace(
            data, recipe_name=HOSTILE, data_set=HOSTILE, command=HOSTILE,
            sample_notice=HOSTILE, lineage=(hostile_step,), timings=[(HOSTILE, 1.0)], parameters={HOSTILE: HOSTILE},
            producer={HOSTILE: HOSTILE}, against=fake_against(HOSTILE), metrics=data.metrics | {HOSTILE: 1.0},
            data_problems=(DataProblem(summary=HOSTILE, details=(HOSTILE,)),),
        )
    )  # fmt: skip
    page = Page(html)
    assert not page.all("script")
    assert all((image["src"] or "").startswith("data:") for image in page.all("img"))
    assert HOSTILE in page.text


def test_champion_is_compared_with_the_challenger(data: ReportData) -> None:
    text = Page(render(data)).text
    assert "Challenger against champion" in render(data)
    assert "+0.0021" in text
    assert "\u22120.0081" in text


def test_the_difference_and_what_is_asked_for_are_shown(data: ReportData) -> None:
    usual = Page(render(data)).text
    assert "at most 0.0010 (tolerance) below the champion" in usual and "Compared with" not in usual
    gate = {"metric": "macro_f1", "minimum": 0.0, "tolerance": 0.0, "max_p_value": 0.05, "above_largest_class": True}
    found = with_decision(data, gate=gate, differences={"champion": "difference +0.0167 (p = 0.6)"})
    text = Page(render(found)).text
    assert "Compared with the champion: difference +0.0167 (p = 0.6)." in text
    assert (
        "Gate: macro F1 better than always predicting the largest class" in text
        and "Gate: test accuracy at least 0.9500" in usual
    )
    assert "better than always predicting the largest class, and better than the champion on the same rows" in text
    assert "with p ≤ 0.05" in text
    alone = Page(render(with_decision(data, gate={"metric": "accuracy", "minimum": 0.0, "tolerance": 0.0}))).text
    assert "Gate: test accuracy at most 0.0000 (tolerance) below the champion" in alone


def test_page_without_a_champion_compares_nothing(data: ReportData) -> None:
    html = render(with_decision(data, metrics={}))
    assert "Challenger against champion" not in html


def test_verdict_follows_the_decision(data: ReportData) -> None:
    refused = Page(render(with_decision(data, promoted=False))).text
    assert "Not promoted" not in Page(render(data)).text
    assert "Not promoted" in refused
    assert "✓ Promoted" not in refused


def test_learning_rate_of_the_backbone_has_a_column_if_it_is_another(data: ReportData) -> None:
    assert "<td>2.00e-03</td><td>frozen</td>" in render(data) and "<td>1.00e-03</td><td>1.00e-04</td>" in render(data)
    history = [row | {"backbone_learning_rate": row["learning_rate"]} for row in data.history]
    assert "of the backbone" not in render(dataclasses.replace(data, history=history))


def test_every_epoch_shows_its_time_and_what_was_waited_for(data: ReportData) -> None:
    text = Page(render(data)).text
    assert "Epoch Time Waiting for data Waiting for checkpoints 1 31.0 s 0.010 0.000 2 32.0 s 0.097 0.002" in text
    assert text.count("Waiting for data took 10 % of epoch 2: try --set loader=resident") == 1


def test_notes_and_training_images_are_shown_where_there_are_any(data: ReportData) -> None:
    assert "training images" not in Page(render(dataclasses.replace(data, training_images=()))).text
    page = Page(render(dataclasses.replace(data, notes=("the training ran on different hardware",))))
    assert "The training ran on different hardware" in page.text
    alternatives = [image["alt"] for image in page.all("img") if (image["alt"] or "").startswith("Training")]
    assert alternatives == [f"Training image {i}: class {name}" for i, (_, name) in enumerate(data.training_images, 1)]


def test_sample_data_is_announced(data: ReportData) -> None:
    notice = "a sample of 2,000 rows, not all of MNIST"
    assert f"Sample data: trained on {notice}." in Page(render(dataclasses.replace(data, sample_notice=notice))).text
    assert "Sample data" not in Page(render(data)).text


def test_a_picture_of_a_persons_own_files_is_called_by_its_file_and_any_other_by_its_row(data: ReportData) -> None:
    first, *others = data.mistakes
    page = render(dataclasses.replace(data, mistakes=(dataclasses.replace(first, file="test/<b>/a b.png"), *others)))
    assert '<p class="muted">test/<wbr>&lt;b&gt;/<wbr>a b.png</p>' in page
    assert f'<p class="muted">row {others[0].id}</p>' in page


def test_page_of_one_epoch_without_mistakes_is_whole(data: ReportData) -> None:
    html = render(dataclasses.replace(fake_data(num_epochs=1), mistakes=(), samples=()))
    assert "All test rows were predicted correctly." in Page(html).text


def test_large_images_are_made_smaller(data: ReportData) -> None:
    image = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    pictures = tuple(dataclasses.replace(picture, image=image) for picture in data.samples)
    assert len(render(dataclasses.replace(data, samples=pictures))) < 1_000_000


def test_lineage_draws_an_arrow_from_every_parent_and_past_the_boxes_between() -> None:
    names = ("files", "raw", "prepared", "checkpoint", "predictions")
    parents = ((), ("files",), ("raw",), ("prepared",), ("checkpoint", "prepared"))
    steps = [LineageStep(title=name, parents=above) for name, above in zip(names, parents, strict=True)]
    diagram = draw(steps)
    assert len(diagram.arrows) == 5
    assert ["H" in arrow for arrow in diagram.arrows].count(True) == 1
    assert diagram.label.endswith("predictions from checkpoint and prepared")


def test_lineage_of_many_files_says_how_many_more_there_are() -> None:
    step = LineageStep(title="Raw files", facts=tuple((f"{number}.gz", 64 * "a") for number in range(20)))
    (box,) = draw([step]).boxes
    assert [name for _, name, _ in box.lines] == ["0.gz", "1.gz", "2.gz", "3.gz", "4.gz", "and 15 more"]


@pytest.mark.parametrize(("share", "interval"), [(0.5, (0.2366, 0.7634)), (1.0, (0.7225, 1.0)), (0.0, (0.0, 0.2775))])
def test_interval_of_ten_rows_is_wilsons(share: float, interval: tuple[float, float]) -> None:
    assert wilson(share, 10) == pytest.approx(interval, abs=5e-5)


@pytest.mark.parametrize(
    ("accuracy", "rows", "shown"),
    [(1.0, 58, "0.938 to 1"), (0.0, 58, "0 to 0.062"), (0.9931, 10_000, "0.9913 to 0.9945"), (0.5, 2, "0.09 to 0.91")],
)
def test_accuracy_has_its_interval_with_as_many_decimals_as_the_rows_justify(
    accuracy: float, rows: int, shown: str
) -> None:
    assert accuracy_interval({"test_accuracy": accuracy, "num_rows": rows}) == shown


def test_section_on_the_data_has_a_banner_class_counts_and_an_entry_in_the_navigation(data: ReportData) -> None:
    calm = Page(render(data)).text
    assert "No problems were recorded" in calm and "needs attention" not in calm
    counts = {"train": {"0": 400, "1": 50}, "validation": {"0": 40, "1": 5}, "test": {"0": 10, "1": 7, "2": 9}}
    problem = DataProblem(summary="1 file left out (not images)", details=("a/notes.txt",))
    minor = dataclasses.replace(problem, is_minor=True)
    quiet = Page(render(dataclasses.replace(data, data_problems=(minor,)))).text
    assert "1 file left out (not images)." in quiet and "needs attention" not in quiet
    page = Page(render(dataclasses.replace(fake_data(("0", "1", "2")), class_counts=counts, data_problems=(problem,))))
    assert {"href": "#data"} in page.all("a")
    assert "The data needs attention ( details ): 1 file left out (not images)" in page.text
    assert "Class train validation test 0 400 40 10 1 50 5 7 2 0 0 9" in page.text
    assert "1 file left out (not images). a/ notes.txt" in page.text


@pytest.mark.parametrize("num_classes", [3, 40, 400])
def test_class_counts_are_a_chart_with_named_bars_or_columns_by_size(num_classes: int) -> None:
    classes = tuple(f"class-{number}" for number in range(num_classes))
    data = with_data(fake_data(classes))
    page = Page(render(data))
    assert render(data) == render(data)
    (chart,) = (svg for svg in page.all("svg") if svg.get("class") == "plot counts")
    assert chart["aria-label"] == f"Rows of each of {num_classes} classes by split; the table below has the numbers"
    bars = [path["d"] or "" for path in page.all("path") if path.get("class") in ("train", "validation", "test")]
    assert [bar.count("M") for bar in bars] == [num_classes] * 3
    texts = render(data).split('class="plot counts"')[1].split("</svg>")[0].count("<text")
    assert texts == (2 * num_classes if num_classes <= 40 else 1)
    shown = [image for image in page.all("img") if (image["alt"] or "").startswith("Training image of class")]
    assert len(shown) == {3: 18, 40: 80, 400: 96}[num_classes]
    assert ("96 of the 400 classes" in page.text) == (num_classes == 400)


def test_slices_name_the_worse_ones_and_list_all(data: ReportData) -> None:
    assert "Slices" not in render(data)
    page = Page(render(with_data(data, name="Canon EOS 5D")))
    assert {"href": "#slices"} in page.all("a")
    worse = (
        "camera Canon EOS 5D: accuracy 0.4750 of 40 rows, others of the same classes 1.0000 (corrected p below 0.0001)"
    )
    assert f"Significantly worse (p ≤ 0.05): {worse} All 4 slices" in page.text
    assert "camera none 400 1.0000 0.99 to 1.00 0.4750 1.0000" in page.text
    assert "Not compared: folder (1 more, 1 rows in all)." in page.text
    calm = with_data(data).slices
    assert calm is not None
    calm = {"slices": [one | {"is_worse": False} for one in calm["slices"]], "skipped": {}, "min_rows": 20}
    assert "No slice is significantly worse" in Page(render(dataclasses.replace(data, slices=calm))).text
