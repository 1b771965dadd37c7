"""The test split decides nothing before a model is trained."""

from pathlib import Path

import pytest

from storage import files, manifest
from storage.uri import Root
from tasks.learning import training_state
from tests.jobs import raw
from tests.learning.training import same


@pytest.mark.usefixtures("more_models")
def test_other_test_rows_or_none_that_can_be_read_give_the_same_rows_statistics_and_weights(tmp_path: Path) -> None:
    weights, rows, statistics = [], [], []
    for number in (30, 7):
        root = Root(str(tmp_path / str(number)))
        prepare = raw.to_prepare(root, raw.write(root, shape=(12, 12, 1), train=202, test=number))
        raw.run(prepare)
        prepared = manifest.load(prepare.target)
        rows.append([file.sha256 for split in ("train", "validation") for file in prepared.split(split)])
        statistics.append([prepared.statistics[name] for name in ("mean", "std")])
        for file in prepared.split("test"):
            files.remove(prepare.target.child(file.path))
        train = raw.to_train(root, prepare.target, epochs=2)
        raw.run(train)
        weights.append(training_state.load_model(train.target)[0].state_dict())
    assert rows[0] == rows[1] and statistics[0] == statistics[1]
    assert same(*weights)
