"""The report page: complete in itself, true to its numbers, safe with any text."""

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tasks.report_page import ReportData, chosen_confidence, render, share
from tasks.report_page.more_photos import MorePhotos
from tests.finished import Finished
from tests.report_page.odd import of_classes, with_decision, with_evaluated, with_slices, with_text

HOSTILE = '"><script>alert(1)</script><img src="https://evil.example/x.png"> & \'$x^2$'


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


@pytest.fixture(scope="module")
def stored(finished: Finished) -> str:
    """The page in storage, of a model that was rejected."""
    return Path(finished.report, "index.html").read_text()


@pytest.fixture(scope="module")
def of_champion(finished: Finished) -> str:
    """The page of the first model, which makes no mistakes."""
    (page,) = (
        path for path in Path(finished.root).glob("reports/*/*.html") if path.parent.name != finished.report.name
    )
    return page.read_text()


@pytest.fixture(scope="module")
def many(finished: Finished) -> ReportData:
    """What a run on 10,000 test rows of ten classes might give, with slices."""
    return with_slices(of_classes(finished.data, tuple("0123456789")), "Canon EOS 5D")


def test_same_results_give_the_same_bytes_and_large_images_are_made_smaller(finished: Finished, stored: str) -> None:
    data = finished.data
    assert render(data) == stored and len(stored) < 1_000_000
    noise = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    mistakes = tuple(each | {"image": noise} for each in data.mistakes)
    assert len(mistakes) == 16 and len(render(dataclasses.replace(data, mistakes=mistakes))) < 1_000_000


def test_figures_on_the_page_are_those_of_the_results(finished: Finished, stored: str) -> None:
    text, data = Page(stored).text, finished.data
    scores = data.evaluated["metrics"]
    accuracy, num_rows = scores["test_accuracy"], scores["num_rows"]
    figures = [f"Test accuracy {accuracy:.4f}", f"test accuracy on {num_rows} rows"]
    figures += [f"Test loss {scores['test_loss']:.4f}", f"Test rows {num_rows}", "Best epoch 2 of 2"]
    figures += [f"Calibration error {scores['expected_calibration_error']:.4f}", f"{data.trained.seconds:.1f} s"]
    for row in data.evaluated["per_class"]:
        shares = " ".join(f"{row[name]:.4f}" for name in ("precision", "recall", "f1"))
        figures.append(f"{row['class_name']} {shares} {row['support']:,}")
    for name, counts in zip(data.classes, data.evaluated["confusion"], strict=True):
        figures.append(" ".join(map(str, [name, *counts])))
    for epoch in data.trained.history:
        losses = epoch.train_loss, epoch.train_accuracy, epoch.validation_loss, epoch.validation_accuracy
        figures.append("{} {:,} {:.4f} {:.4f} {:.4f} {:.4f}".format(epoch.epoch, epoch.step, *losses))
    figures += ["0.0001", "--set epochs=2", str(data.producer["torch"]), data.decision.reason]
    figures += [str(step.uri) for step in data.lineage if step.uri]
    assert [figure for figure in figures if figure not in text.replace(" ★", "")] == []
    assert re.search(r"95% interval \(Wilson\): 0\.\d{4} to 0\.\d{4}", text)


def test_confidence_of_the_sentence_is_proven_by_the_test_rows_that_it_names(many: ReportData) -> None:
    goal, row = chosen_confidence(many.evaluated["coverage"])
    assert row and goal == 0.99
    at, covered, right = f"{row['confidence']:.2f}", row["rows"] / 10_000, row["right"] / row["rows"]
    shares = [f"{int(1000 * share) / 10:g}%" for share in (covered, right)]
    text = Page(render(many)).text
    assert f"At {at} and above: {shares[0]} of images, at least 99% of them right. Of {row['rows']:,} such" in text
    assert f"{at} ★ {row['rows']:,} {' '.join(shares)}" in text


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


def test_hostile_names_are_escaped(finished: Finished) -> None:
    data = of_classes(with_text(finished.data, HOSTILE), tuple(f"{HOSTILE}{number}" for number in range(100)))
    decision = finished.decision
    gate = decision.gate | {HOSTILE: HOSTILE}
    data = with_decision(with_slices(data, HOSTILE), gate=gate, difference=decision.difference)
    assert data.left_out and data.near_duplicates and data.data_problems and data.against
    data = with_evaluated(data, metrics=data.evaluated["metrics"] | {HOSTILE: 1.0})
    html = render(dataclasses.replace(data, sample_notice=HOSTILE, parameters={HOSTILE: HOSTILE}))
    page = Page(html)
    assert not page.all("script")
    assert all((image["src"] or "").startswith("data:") for image in page.all("img"))
    assert HOSTILE in page.text
    tall = [image for image in page.all("img") if (image["alt"] or "").startswith("Training image of class")]
    assert len(tall) == 96 and "96 of the 100 classes" in page.text


def test_verdict_gate_and_champion_are_those_of_the_decision(
    finished: Finished, stored: str, of_champion: str, many: ReportData
) -> None:
    text, alone = Page(stored).text, Page(of_champion).text
    decision = finished.decision
    assert decision.decided and decision.difference
    difference = finished.data.evaluated["metrics"]["test_accuracy"] - decision.metrics["champion"]["test_accuracy"]
    assert "✓ Promoted" in alone and "✗" not in alone.partition("Gate:")[0]
    assert "✗ Rejected" in text and "✓ Promoted" not in text
    assert f"Decided on {decision.decided:%Y-%m-%d %H:%M} UTC by {decision.author}." in text
    assert "Challenger against champion" in stored and f"\u2212{-difference:.4f}" in text
    assert f"Compared with the champion: difference in test accuracy {decision.difference.difference:.4f} " in text
    assert "Challenger against champion" not in of_champion and "Compared with" not in alone
    assert "There was no champion before, so there is nothing to compare." in alone
    assert f"champion before, {finished.champion.train.target} ," in text and "epochs 8 -> 2" in text
    gate = {"metric": "macro_f1", "minimum": 0.95, "tolerance": 0.001}
    by_tolerance, by_test = (
        Page(render(with_decision(many, gate=each))).text for each in (gate, gate | {"max_p_value": 0.05})
    )
    assert "Gate: macro F1 at least 0.9500 (minimum), better than always predicting" in by_tolerance
    assert "at most 0.0010 (tolerance) below the champion" in by_tolerance
    assert "better than the champion on the same rows with p ≤ 0.05" in by_test


def test_what_a_run_has_besides_is_shown_and_only_then(stored: str, of_champion: str, many: ReportData) -> None:
    commit = 40 * "a"
    first, last = many.trained.history
    frozen = dataclasses.replace(first, learning_rate=2e-3, backbone_learning_rate=0.0)
    on_gpu = dataclasses.replace(last, launch="graph", gpu_busy=0.97, gpu_memory=5 * 2**30, mfu=0.175)
    trained = many.trained.model_copy(update={"temperature": 1.4321, "history": (frozen, on_gpu)})
    producer = many.producer | {"git": f"{commit} dirty 0123456789ab"}
    data = dataclasses.replace(many, sample_notice="a sample of 2,000 rows, not all of MNIST", trained=trained)
    html = render(dataclasses.replace(data, data_problems=(), producer=producer))
    text, alone, more = (Page(html).text for html in (stored, of_champion, html))
    says = {
        "Sample data: trained on a sample of 2,000 rows, not all of MNIST.": more,
        "a temperature of 1.432, which was fitted on validation rows. Without it, the ECE would be 0.0131": more,
        "and the loss 0.0222 instead of 0.0231: it did not help.": more,
        "There were uncommitted changes (digest 0123456789ab)": more,
        "No problems found": more,
        "2.00e-03 frozen": more,
        "on a GPU (graph) that was busy for a share of 0.9700 of the time and did 0.1750 of its peak": more,
        "at most 5.0 GiB of its memory were in use.": more,
        "The data needs attention ( details )": text + alone,
        "All test rows were predicted correctly.": alone,
    }
    assert {said: [said in shown for shown in (text, more, alone)] for said in says} == {
        said: [shown in where for shown in (text, more, alone)] for said, where in says.items()
    }
    assert f"git checkout {commit}\n" in html
    assert '<p class="muted">test row 1</p>' in html, "a picture is called by its row,"
    assert '<p class="muted">test/<wbr>pears/<wbr>' in stored, "or by its file"


def test_data_section_has_the_rows_of_each_class_and_what_was_left_out(stored: str, many: ReportData) -> None:
    text = Page(stored).text
    assert "The data needs attention ( details ): 4 of 157 rows excluded (copy of another test row" in text
    assert "3 without a picture test/ pears/ no image.webp: not an image" in text
    assert "pears copy of another test row of its class test/ pears/ photo 7.png" in text
    assert "Near duplicates across train and test, most similar first" in text
    page = Page(render(many))
    assert "Class train validation test All 0 1,500 1,500 1,500 1 1,000 1,000 1,000" in page.text
    bars = [span["style"] for span in page.all("span") if (span.get("class") or "").startswith("bar validation")]
    assert len(bars) == 10 and bars[0] != bars[9]
    assert len([image for image in page.all("img") if "Training image of class" in (image["alt"] or "")]) == 60


def test_slices_name_the_worse_ones(stored: str, many: ReportData) -> None:
    page = Page(render(many))
    assert {"href": "#slices"} in page.all("a")
    worse = "camera Canon EOS 5D: accuracy 0.4750 of 40 rows, others of the same classes 1.0000 (corrected p below"
    assert f"Significantly worse (p ≤ 0.05): {worse}" in page.text
    assert "camera none 400 1.0000 0.99 to 1.00 0.4750 1.0000" in page.text
    assert "A slice has at least 20 rows" in page.text


def test_first_screen_says_what_to_do_about_the_findings_that_cost_most(many: ReportData, of_champion: str) -> None:
    more = MorePhotos(rows=90, total=90, balanced_accuracy=0.8, curve=(0.6, 0.7, 0.8), gain=(0.01, 0.19))
    data = of_classes(many, ("cat", "dog", "owl"))
    counts = dict(data.class_counts) | {"train": {"cat": 300, "dog": 7, "owl": 19}}
    confusion = [[90, 10, 0], [0, 100, 0], [1, 0, 99]]
    data = dataclasses.replace(data, class_counts=counts, more_photos=more)
    data = with_evaluated(data, confusion=confusion)
    text = Page(render(data)).text.partition("Key figures")[0]
    assert "Few training images: dog (7), owl (19). Add photos of these classes first. ( details )" in text
    assert "The most frequent mistake: cat taken for dog, 10 times. Compare the photos of both." in text
    assert "More photos help. Of unlabeled photos, find those to label first with data-to-model next FOLDER" in text
    assert "What to do next" not in Page(of_champion).text, "all test rows are right, and no class is rare"
    for gain in ((-0.1, 0.1), (0.0, 0.01)):
        data = dataclasses.replace(data, more_photos=dataclasses.replace(more, gain=gain))
        assert "find those to label first" not in Page(render(data)).text
