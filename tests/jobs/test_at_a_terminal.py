"""A real training at a terminal of 80 columns: interrupted, listed, resumed."""

import json
import re
from pathlib import Path

import pytest

from storage.uri import DatasetURI, Root
from tasks.jobs.spec import TrainSpec
from tests.jobs import raw
from tests.learning.training import MORE_MODELS
from tests.terminal import typed

_ROW = re.compile(r"^\[ *[\d.]+ s\] +(\d)/4 +\d\.\d{4} ", re.MULTILINE)
_QUIET = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
_TRAIN = f"""
import logging, sys
from pathlib import Path
from rich.console import Console
from flows.cli.console import Narrator
from tasks.jobs.spec import TrainSpec
from tasks.learning import models
from tasks.learning.loop import Trainer
from tasks.runners.runner import InProcessRunner

models.__path__.append({str(MORE_MODELS)!r})
narrator = Narrator(Console(stderr=True))
logging.getLogger("pipeline").addHandler(narrator)
logging.getLogger("pipeline").setLevel(logging.DEBUG)
run_epoch, last = Trainer.run_epoch, int(sys.argv[2])

def until_interrupted(trainer, epoch, **how):
    if epoch > last:
        raise KeyboardInterrupt
    return run_epoch(trainer, epoch, **how)

Trainer.run_epoch = until_interrupted
spec = TrainSpec.model_validate_json(Path(sys.argv[1]).read_text())
try:
    InProcessRunner().run("train", spec)
except KeyboardInterrupt:
    pass
finally:
    narrator.stop()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("more_models")
def test_epochs_stay_in_sight_and_a_training_that_was_cut_off_is_listed_and_resumed(
    prepared: DatasetURI, tmp_path: Path
) -> None:
    spec = raw.to_train(Root(str(tmp_path / "data")), prepared, epochs=4)
    first = _trained(spec, tmp_path, last=3)
    assert _ROW.findall(first) == ["1", "2", "3"] and "train loss" in first[: first.index("   1/4")]
    _, listed = typed(["-m", "storage", "ls"], folder=tmp_path)
    assert [line.strip() for line in listed if "runs/" in line] == [f"data/runs/{spec.scratch.name}"]
    assert any(line.startswith("interrupted  train  3 of 4 epochs done  last written ") for line in listed), listed

    second = _trained(spec, tmp_path, last=4)
    resumed = r" epoch 3/4: done before, resuming from its checkpoint; best so far: epoch [123] "
    assert re.search(resumed, " ".join(second.split()))
    assert _ROW.findall(second) == ["4"]
    _, listed = typed(["-m", "storage", "ls"], folder=tmp_path)
    assert any("checkpoint" in line for line in listed) and not any("interrupted" in line for line in listed)


def _trained(spec: TrainSpec, folder: Path, *, last: int) -> str:
    """What a training that is interrupted after epoch `last` writes to the terminal, each state of its bar a line."""
    file = folder / "spec.json"
    file.write_text(json.dumps(json.loads(spec.model_dump_json())))
    code, lines = typed(["-c", _TRAIN, str(file), str(last)], folder=folder, env=_QUIET | {"PREFECT_HOME": str(folder)})
    stays = [line.rpartition("\r")[2] for line in lines]
    assert code == 0 and all(len(line) <= 80 for line in stays), lines
    return "\n".join(stays)
