"""The report page: complete in itself, true to its numbers, safe with any text."""

import dataclasses
import datetime
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

from storage.decision import Decision
from storage.statistics import CheckpointStatistics, EpochMetrics, NamedRow, Pair
from storage.uri import URI, CheckpointURI
from tasks.comparing.data import SORTS
from tasks.jobs.preprocess.data_problems import DataProblem
from tasks.jobs.preprocess.near_duplicates import KINDS
from tasks.learning import metrics, slices
from tasks.report_page import LineageStep, PairPictures, Picture, ReportData, chosen_confidence, render, share
from tests import committed

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


def fake_data(classes: tuple[str, ...] = DIGITS, *, channels: int = 1, num_epochs: int = 5) -> ReportData:
    """What a run on 10 000 test rows might give, the same each time."""
    generator = np.random.default_rng(0)
    labels, confidence = np.arange(10_000) % len(classes), 1 - 0.3 * generator.random(10_000) ** 4
    is_right = generator.random(10_000) < confidence
    answers = np.where(is_right, labels, (labels + 1) % len(classes))
    counts = metrics.confusion(labels, answers, num_classes=len(classes))
    scores = metrics.scores(labels, answers, num_classes=len(classes))
    scores |= {"test_loss": 0.0231, "expected_calibration_error": 0.0147, "num_rows": 10000}
    champion = scores | {"test_accuracy": scores["test_accuracy"] - 0.0021, "test_loss": 0.0312}
    side = 28 if channels == 1 else 32
    model = CheckpointURI("s3://models/mnist/checkpoints/mnist-resnet18-0123456789ab")
    return ReportData(
        recipe_name="mnist-resnet18",
        data_set="mnist",
        sample_notice=None,
        decision=Decision(
            number=2,
            champion=model,
            challenger=model,
            evaluation="",
            promoted=True,
            reason="Test accuracy is at least the minimum, and 0.0021 above the champion's.",
            gate={"metric": "accuracy", "minimum": 0.95, "tolerance": 0.001},
            metrics={"champion": champion},
        ),
        evaluated={
            "metrics": scores,
            "untempered": scores | {"test_loss": 0.0222, "expected_calibration_error": 0.0131},
            "per_class": metrics.per_class(counts, classes),
            "confusion": counts.tolist(),
            "calibration": metrics.calibration(is_right, confidence),
            "coverage": metrics.coverage(is_right, confidence),
            "slices": {"slices": []},
        },
        trained=fake_training(num_epochs),
        classes=classes,
        mistakes=tuple(
            Picture(
                image=generator.integers(0, 256, (side, side, channels), dtype=np.uint8),
                label=classes[index % len(classes)],
                prediction=classes[(index + 1) % len(classes)],
                probability=float(1 - 0.6 * generator.random() ** 4),
                id=37 * index,
            )
            for index in range(16)
        ),
        lineage=fake_lineage(),
        parameters={"name": "mnist-resnet18", "epochs": num_epochs, "learning_rate": 0.002, "precision": "auto"},
        command="python flows/pipeline.py --storage s3://models/mnist --workers 2 --set epochs=5",
        producer={"data-to-model": "0.1.0", "ray": "2.50.0", "torch": "2.9.0", "git": None},
        against=fake_against(),
    )


def with_data(data: ReportData, *, name: str = "test/cats_of_the_neighbours/IMG_20261123.jpg") -> ReportData:
    """The page with all that the sections on the data and on slices can have; `name` is any text of the person's."""
    generator = np.random.default_rng(1)
    pictures = list(generator.integers(0, 256, (20, 64, 64, 3), np.uint8))
    of_each = max(1, min(6, 96 // len(data.classes)))
    sizes = [3000 // (number + 2) for number in range(len(data.classes))]
    counts = {split: dict(zip(data.classes, sizes, strict=True)) for split in ("train", "validation", "test")}
    left_out = {"class": name, "place": name, "reason": name, "image": pictures[0]}
    row = NamedRow(source="test", row=0, place=name, class_name=name)
    pair = Pair(distance=0.031, first=row, second=row)
    known = pd.DataFrame({"camera": [name] * 40 + ["none"] * 400, "folder": generator.choice(["a", "b"], 440)})
    known.loc[0, "folder"] = "rare"
    found = slices.find(known, np.zeros(440, int), np.arange(440) > 20)
    return dataclasses.replace(
        data,
        class_counts=counts,
        class_samples=dict.fromkeys(data.classes[:96], pictures[:of_each]),
        left_out=(left_out, left_out | {"class": None, "image": None}) * 5,
        near_duplicates=tuple(PairPictures(kind, pair, (pictures[0], pictures[1])) for kind in KINDS for _ in "12"),
        evaluated=data.evaluated | {"slices": {"slices": [each.model_dump() for each in found]}},
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
        "data": {"counts": dict.fromkeys(SORTS, 60)} | dict.fromkeys(SORTS, [change] * 60),
        "test_rows": {
            "rows": 1000,
            "note": name,
            "metrics": {"test_accuracy": accuracy},
            "better": rows,
            "worse": rows,
        },
        "notes": {"test_rows": name},
    }


def with_decision(data: ReportData, **changes: Any) -> ReportData:
    return dataclasses.replace(data, decision=data.decision.model_copy(update=changes))


def fake_training(num_epochs: int) -> CheckpointStatistics:
    history = fake_history(num_epochs)
    made = committed.statistics("checkpoint", history=history, best_epoch=max(1, num_epochs - 1), seconds=83.4)
    assert isinstance(made, CheckpointStatistics)
    return made


def fake_history(num_epochs: int) -> tuple[EpochMetrics, ...]:
    return tuple(
        EpochMetrics(
            epoch=epoch,
            step=422 * epoch,
            train_loss=0.25 + 0.6 / epoch,
            train_accuracy=0.985 - 0.08 / epoch,
            validation_loss=0.02 + 0.1 / epoch + 0.002 * epoch,
            validation_accuracy=0.994 - 0.02 / epoch,
            learning_rate=0.002 / epoch,
            backbone_learning_rate=0.0 if epoch == 1 else 0.0002 / epoch,
        )
        for epoch in range(1, num_epochs + 1)
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
            uri=URI(f"s3://models/team/{place}-0123456789a{index}"),
            link=f"../../{place}-0123456789a{index}/_manifest.json",
            facts=tuple(facts) if index == 1 else (("test rows", "10,000"),),
        )
        for index, (title, place) in enumerate(places.items())
    ]
    return (LineageStep(title="Raw files", facts=raw), *steps)


@pytest.fixture(scope="module")
def usual() -> str:
    """The page of `fake_data`: promoted against a champion, nothing unusual."""
    return render(fake_data())


@pytest.fixture(scope="module")
def full() -> str:
    """A page with all that a page may have beyond the usual."""
    data = with_data(fake_data(channels=3), name="Canon EOS 5D")
    gate = {"metric": "macro_f1", "minimum": 0.0, "tolerance": 0.0, "max_p_value": 0.05}
    found: Any = "difference +0.0167 (p = 0.6)"
    data = with_decision(data, decided=WHEN, author="ada, run 7", gate=gate, difference=found)
    picture = dataclasses.replace(
        data.mistakes[0],
        image=np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8),
        file="test/<b>/a b.png",
    )
    problem = DataProblem(summary="1 file left out (not images)", details=("a/notes.txt",))
    return render(
        dataclasses.replace(
            data, mistakes=(picture,) * 16, temperature=1.4321, data_problems=(problem,),
            sample_notice="a sample of 2,000 rows, not all of MNIST",
            producer=data.producer | {"git": f"{40 * 'a'} dirty 0123456789ab"},
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def bare() -> str:
    """A page of a first model of one epoch that makes no mistakes and is refused."""
    data = with_decision(fake_data(num_epochs=1), metrics={}, promoted=False, champion=None)
    history = [dataclasses.replace(row, backbone_learning_rate=row.learning_rate) for row in data.trained.history]
    changes: dict[str, Any] = {"mistakes": (), "trained": data.trained.model_copy(update={"history": history})}
    minor = DataProblem(summary="1 file left out (not images)", details=(), is_minor=True)
    return render(dataclasses.replace(data, **changes, data_problems=(minor,), against=None))


def test_same_data_gives_the_same_bytes_and_large_images_are_made_smaller(usual: str, full: str) -> None:
    assert usual == render(fake_data())
    assert len(usual) < 1_000_000 and len(full) < 3_000_000


def test_figures_on_the_page_are_those_given(usual: str) -> None:
    text, data = Page(usual).text, fake_data()
    accuracy = data.evaluated["metrics"]["test_accuracy"]
    for shown in (f"Test accuracy {accuracy:.4f}", f"{100 * accuracy:.2f} % of 10,000 rows", "Test loss 0.0231"):
        assert shown in text
    for shown in ("Calibration error 0.0147", "Test rows 10,000", "Best epoch 4 of 5", "Training 83.4 s"):
        assert shown in text
    for row in data.evaluated["per_class"]:
        shares = " ".join(f"{row[name]:.4f}" for name in ("precision", "recall", "f1"))
        assert f"{row['class_name']} {shares} {row['support']:,}" in text
    for name, counts in zip(data.classes, data.evaluated["confusion"], strict=True):
        assert " ".join(map(str, [name, *counts])) in text
    cells = re.findall(r'class="(?:right|wrong)" style="--strength: ([\d.]+)">(\d+)<', usual)
    assert {(strength, count) for strength, count in cells} == {
        (f"{0.1 + 0.45 * int(n) / 1000:.3f}", n) for _, n in cells
    }
    for epoch in data.trained.history:
        losses = epoch.train_loss, epoch.train_accuracy, epoch.validation_loss, epoch.validation_accuracy
        shown = "{} {:,} {:.4f} {:.4f} {:.4f} {:.4f}".format(epoch.epoch, epoch.step, *losses)
        assert shown in text.replace(" ★", "")
    assert "quarantined: 2: label out of range 1: empty" in text
    assert re.search(r"95 % interval \(Wilson\): 0\.9\d{3} to 0\.9\d{3}", text)
    for value in (
        "0.002",
        "--set epochs=5",
        "2.50.0",
        data.decision.reason,
        *(step.uri for step in data.lineage if step.uri),
    ):
        assert value in text


def test_confidence_of_the_sentence_is_proven_by_the_test_rows_that_it_names(usual: str) -> None:
    goal, row = chosen_confidence(fake_data().evaluated["coverage"])
    assert row and goal == 0.99
    at, covered, right = f"{row['confidence']:.2f}", row["rows"] / 10_000, row["right"] / row["rows"]
    shares = [f"{int(1000 * share) / 10:g} %" for share in (covered, right)]
    assert f"At {at} and above: {shares[0]} of images, at least 99 % of them right. Of {row['rows']:,} such" in (
        Page(usual).text
    )
    assert f"{at} ★ {row['rows']:,} {' '.join(shares)}" in Page(usual).text


@pytest.mark.parametrize(
    ("coverage", "expected"),
    [
        ([(1000, 995), (500, 500)], (0.99, 1)),  # Wilson: 0.9884 to 0.9979, and 0.9924 to 1
        ([(1000, 900), (100, 100)], (0.95, 1)),  # 0.9630 to 1
        ([(99, 99), (60, 60)], (0.0, None)),
        ([(1000, 500), (100, 90)], (0.0, None)),
    ],
)
def test_few_rows_prove_less_and_fewer_than_a_hundred_nothing(
    coverage: list[tuple[int, int]], expected: tuple[float, int | None]
) -> None:
    rows: list[dict[str, int]] = [{"rows": count, "right": right} for count, right in coverage]
    goal, row = chosen_confidence(rows)
    assert (goal, rows.index(row) if row else None) == expected


@pytest.mark.parametrize(("value", "shown"), [(1, "1.0000"), (0.999951, ">0.9999"), (0.99994, "0.9999"), (0, "0.0000")])
def test_share_below_one_is_never_shown_as_all(value: float, shown: str) -> None:
    assert share(float(value)) == shown


def test_hostile_names_are_escaped() -> None:
    data = fake_data(tuple(f"{HOSTILE}{index}" for index in range(100)))
    changes = {"reason": HOSTILE, "author": HOSTILE, "gate": data.decision.gate | {HOSTILE: HOSTILE}}
    scores = data.evaluated["metrics"] | {HOSTILE: 1.0}
    step = LineageStep(title=HOSTILE, uri=URI("s3://bucket/a-0123456789ab"), link=HOSTILE, facts=((HOSTILE, HOSTILE),))
    data = with_data(with_decision(data, decided=WHEN, **changes), name=HOSTILE)
    html = render(
        dataclasses.replace(
            data, recipe_name=HOSTILE, data_set=HOSTILE, command=HOSTILE,
            sample_notice=HOSTILE, lineage=(step,), parameters={HOSTILE: HOSTILE},
            producer={HOSTILE: HOSTILE}, against=fake_against(HOSTILE), evaluated=data.evaluated | {"metrics": scores},
            data_problems=(DataProblem(summary=HOSTILE, details=(HOSTILE,)),),
        )
    )  # fmt: skip
    page = Page(html)
    assert not page.all("script")
    assert all((image["src"] or "").startswith("data:") for image in page.all("img"))
    assert HOSTILE in page.text
    tall = [image for image in page.all("img") if (image["alt"] or "").startswith("Training image of class")]
    assert len(tall) == 96 and "96 of the 100 classes" in page.text


def test_verdict_gate_and_champion_are_those_of_the_decision(usual: str, full: str, bare: str) -> None:
    text, more, alone = (Page(html).text for html in (usual, full, bare))
    assert "✓ Promoted" in text and "✗" not in text.partition("Gate:")[0] and "Decided on" not in text
    assert "Challenger against champion" in usual and "+0.0021" in text and "\u22120.0081" in text
    assert "Gate: test accuracy at least 0.9500" in text and "Compared with" not in text
    assert "at most 0.0010 (tolerance) below the champion" in text
    assert "✗ Rejected" in alone and "✓ Promoted" not in alone and "Challenger against champion" not in bare
    assert "Decided on 2026-11-23 12:50 UTC by ada, run 7." in more
    assert "Gate: macro F1 better than always predicting the largest class, and better than the champion on" in more
    assert "with p ≤ 0.05" in more and "Compared with the champion: difference +0.0167 (p = 0.6)." in more


def test_epochs_show_learning_rates(usual: str, bare: str) -> None:
    assert "<td>2.00e-03</td><td>frozen</td>" in usual and "<td>1.00e-03</td><td>1.00e-04</td>" in usual
    assert "of the backbone" not in bare


def test_what_a_run_has_besides_is_shown_and_only_then(usual: str, full: str, bare: str) -> None:
    text, more, alone = (Page(html).text for html in (usual, full, bare))
    says = {
        "Sample data: trained on a sample of 2,000 rows, not all of MNIST.": more,
        "a temperature of 1.432, which was fitted on validation rows. Without it, the ECE would be 0.0131": more,
        "and the loss 0.0222 instead of 0.0231: it did not help.": more,
        "There were uncommitted changes (digest 0123456789ab)": more,
        "The data needs attention ( details ): 1 file left out (not images)": more,
        "1 file left out (not images). a/ notes.txt": more,
        "No problems were recorded": text,
        "All test rows were predicted correctly.": alone,
        "There was no other champion before this model.": alone,
    }
    assert {said: [said in shown for shown in (text, more, alone)] for said in says} == {
        said: [shown in where for shown in (text, more, alone)] for said, where in says.items()
    }
    assert "1 file left out (not images)." in alone
    assert f"git checkout {40 * 'a'}\n" in full
    assert '<p class="muted">test/<wbr>&lt;b&gt;/<wbr>a b.png</p>' in full, "a picture is called by its file,"
    assert f'<p class="muted">row {fake_data().mistakes[1].id}</p>' in usual, "or by its row"


def test_data_section_has_the_rows_of_each_class_and_slices_name_the_worse_ones(usual: str, full: str) -> None:
    page = Page(full)
    assert {"href": "#data"} in page.all("a") and {"href": "#slices"} in page.all("a") and "Slices" not in usual
    assert "Class train validation test All 0 1,500 1,500 1,500 1 1,000 1,000 1,000" in page.text
    bars = [span["style"] for span in page.all("span") if (span.get("class") or "").startswith("bar validation")]
    assert [bars[0], bars[9]] == ["width: 31.7%", "width: 5.7%"] and len(bars) == 10
    assert len([image for image in page.all("img") if "Training image of class" in (image["alt"] or "")]) == 60
    worse = "camera Canon EOS 5D: accuracy 0.4750 of 40 rows, others of the same classes 1.0000 (corrected p below"
    assert f"Significantly worse (p ≤ 0.05): {worse}" in page.text
    assert "camera none 400 1.0000 0.99 to 1.00 0.4750 1.0000" in page.text
    assert "A slice has at least 20 rows" in page.text
