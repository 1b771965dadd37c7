"""Images that move between train and test: rows that a compared model has seen in training count for no model."""

import re
from pathlib import Path

import pytest

from storage import champions, files, manifest
from storage.kinds import EVALUATION
from storage.uri import Root
from tasks.images import row_tables
from tasks.jobs.local_data import LocalData
from tasks.jobs.preprocess import job as preprocess
from tasks.jobs.spec import JobSpec
from tests.image_folder import encoded
from tests.images.test_parquet_files import labelled
from tests.jobs import raw
from tests.promotion.contest import ANY, Contest

MEMORIZED = [row for row in range(60) if row >= 28 and row % 2 == 0]
"""Wrong answers of a model that has seen the first 28 test rows, and knows half of the others."""
HONEST = range(0, 60, 3)
"""Wrong answers of a model that knows two thirds of whatever it is."""


def test_an_honest_challenger_beats_a_champion_that_has_seen_the_new_test_rows(contest: Contest) -> None:
    champion = contest.model("champion", *MEMORIZED, data=contest.dataset("first", range(28)))
    challenger = contest.model("challenger", *HONEST)
    champions.promote(contest.plan.root, champion, name="photos")
    scores = [manifest.load(contest.evaluations[model]).statistics_of(EVALUATION) for model in (champion, challenger)]
    assert scores[0].test_accuracy > scores[1].test_accuracy, "on all rows"
    decision = contest.decide(challenger, ANY)
    assert decision.promoted
    assert decision.reason == (
        "test accuracy 0.6875 is at least the champion's 0.5000 on the same rows; 28 of 60 test rows excluded, as they "
        "were training or validation rows: 28 of the champion"
    )
    assert decision.difference and (decision.num_excluded, decision.difference.num_rows) == (28, 32)
    warm = contest.model("warm", *MEMORIZED, initial=contest.model("middle", initial=champion))
    decision = contest.decide(warm, ANY)
    assert decision.reason.startswith("test accuracy 0.5000 is not above 0.6250, the score of always predicting")
    assert "they were training or validation rows: 28 of this model" in decision.reason, "its first model's rows"


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("champion", "could not be checked: .* has images of another size"),
        ("file", "could not be checked: training began with a file of weights, which names no images"),
    ],
)
def test_a_warm_start_leaks_at_no_image_size_and_from_no_file_in_silence(
    contest: Contest, start: str, message: str
) -> None:
    small = contest.model("small", data=contest.dataset("small", range(28), shape=(1, 1, 1)))
    warm = contest.model("warm", initial=small if start == "champion" else None, start=start)
    assert re.search(message, contest.decide(warm, ANY).reason)


def test_a_test_split_that_was_all_trained_on_decides_nothing(contest: Contest) -> None:
    champion = contest.model("champion")
    contest.decide(champion, ANY)
    decision = contest.decide(contest.model("challenger", data=contest.dataset("all", range(60))), ANY)
    assert (decision.promoted, decision.champion, decision.difference) == (False, champion, None)
    assert decision.reason == (
        "no test row of class cat, dog counts; add test images that no model was trained on, or choose another "
        "registered model with --register-as NAME; 60 of 60 test rows excluded, as they were training or validation "
        "rows: 60 of this model"
    )


def test_wrong_labels_of_new_test_rows_that_reverse_the_comparison_are_in_the_reason(contest: Contest) -> None:
    before = contest.dataset("first", range(100, 105), test=range(10, 60))
    contest.decide(contest.model("champion", *range(12), data=before), ANY)
    decision = contest.decide(contest.model("challenger", *range(50, 57)), ANY)
    assert decision.difference and decision.difference.difference == 5 / 60
    assert decision.known_difference and decision.known_difference.num_rows == 50
    assert decision.reason.endswith(
        "; on the 50 test rows whose label the champion's data had it is worse (-0.1000): "
        "check the labels of the other test images"
    )
    assert decision.comparisons[1].startswith("compared with the champion, test rows whose label its data had: diff")


def test_a_champion_whose_data_was_deleted_is_compared_with_a_note_in_the_reason(contest: Contest) -> None:
    prepared = contest.dataset("first", range(28))
    champions.promote(contest.plan.root, contest.model("champion", *HONEST, data=prepared), name="photos")
    files.remove(prepared)
    decision = contest.decide(contest.model("challenger"), ANY)
    assert decision.promoted and decision.num_excluded == 0
    message = f"{prepared} is not committed: it has no _manifest.json"
    assert decision.reason.endswith(f"; whether the champion was trained on test rows could not be checked: {message}")


def test_an_image_keeps_its_digest_in_a_folder_in_parquet_and_stored_as_a_file(tmp_path: Path) -> None:
    digests = []
    for kind in ("pixels", "files", "Parquet"):
        root = Root(str(tmp_path / kind))
        for first, split in ((0, "train"), (100, "test")):
            if kind == "Parquet":
                files.put(root.child(f"photos/{split}.parquet"), labelled(["cat", "dog"] * 8, first=first))
                continue
            for row in range(16):
                path = f"photos/{split}/{('cat', 'dog')[row % 2]}/{row}.png"
                files.put(root.child(path), encoded(first + row, row % 2))
        ingest = raw.to_ingest(root, root.child("photos"), store="files" if kind == "files" else "pixels")
        raw.run(ingest)
        prepare = raw.to_prepare(root, ingest.target)
        preprocess.run(JobSpec(stage=prepare), LocalData())
        digests.append(set(row_tables.read_digests(prepare.target)["digest"].to_pylist()))
    assert len(digests[0]) == 32 and digests[0] == digests[1] == digests[2]
