"""A job's log becomes log records: in order and without chatter."""

import json
import logging

import pytest
from ray.exceptions import OutOfMemoryError

from storage.uri import URI
from tasks.jobs import errors
from tasks.jobs.errors import JobFailed, JobRefused
from tasks.jobs.events import EPOCHS, ERROR, PROGRESS
from tasks.runners.job_log import Follower

_WORKER = "(RayTrainWorker pid=4711)"
_OTHER = "(RayTrainWorker pid=4711, ip=10.0.0.2)"


def _progress(done: int, *, epoch: int, what: str = "steps", note: str = "") -> str:
    fraction = done / 80 if what == EPOCHS else (epoch - 1 + done / 80) / 80
    content = {"what": what, "done": done, "total": 80, "note": note, "fraction": fraction, "epoch": epoch}
    content["at"] = 60 * 80 * fraction  # a minute an epoch
    return f"{_WORKER} {PROGRESS}{json.dumps(content)}\n"


def _followed(log: str, caplog: pytest.LogCaptureFixture, *, level: int = logging.INFO) -> list[str]:
    with caplog.at_level(level, logger="pipeline"):
        Follower().feed(log, ended=True)
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def test_lines_of_workers_are_logged_between_the_progress_in_order(caplog: pytest.LogCaptureFixture) -> None:
    log = f"{_WORKER} before\n" + _progress(8, epoch=2) + f"{_OTHER} hello\n"
    assert _followed(log, caplog) == [f"{_WORKER} before", "steps 8/80", f"{_OTHER} hello"]


def test_every_epoch_has_its_line_and_steps_in_between_have_few(caplog: pytest.LogCaptureFixture) -> None:
    log = "".join(
        "".join(_progress(step, epoch=epoch) for step in range(1, 81))
        + _progress(epoch, epoch=epoch, what=EPOCHS, note="loss")
        for epoch in range(1, 81)
    )
    lines = [line for line in _followed(log, caplog) if line != "steps 1/80"]
    assert [line.partition("; ")[0] for line in lines] == [f"epoch {epoch}/80: loss" for epoch in range(1, 81)]
    assert lines[40].endswith("loss; about 0:39:00 left") and "left" not in lines[-1]


def test_warnings_of_a_users_code_are_warnings_and_those_of_libraries_are_chatter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = f"{_WORKER} /code/my_model.py:3: UserWarning: odd\n"
    log += f"{_WORKER} /env/site-packages/torch/x.py:1: FutureWarning: soon\n"
    assert _followed(log, caplog, level=logging.WARNING) == [f"{_WORKER} /code/my_model.py:3: UserWarning: odd"]


_CHATTER = """\
2026-11-26 04:28:11,873\tINFO job_manager.py:568 -- Runtime env is setting up.
Running entrypoint for job train-1: exec python -m tasks.jobs train spec.json
2026-11-26 04:44:50,201\tWARNING __init__.py:28 -- Progress bars disabled. To enable, set `ray.data.DataContext
(RayTrainWorker pid=4711) Reporting training result 1: TrainingReport(checkpoint=None, metrics={}) from rank 1
(SplitCoordinator pid=4711) Progress bars disabled. To enable, set `ray.data.DataContext
[2026-11-26 04:28:14,001 W 71 93] core_worker.cc:2710: a worker
(pid=4711) [2026-11-26 04:28:14,001 I 71 93] core_worker.cc:2710: a worker
"""


@pytest.mark.parametrize("prefix", ["", f"{_WORKER} "])
def test_every_line_that_a_user_prints_is_logged_and_none_of_ray_about_itself(
    caplog: pytest.LogCaptureFixture, prefix: str
) -> None:
    printed = ["Tip: use more data", "state: world_rank=0", "\tINFO my model", "Progress bars disabled", "", "  warn"]
    printed += ["Reporting training result", "see core_worker.cc: it aborts", "docs: site-packages/x.py Warning: old"]
    lines = [f"{prefix}{line}" for line in printed]
    assert _followed("".join(f"{line}\n" for line in lines) + _CHATTER, caplog) == lines


def test_every_line_is_logged_once_and_only_when_it_is_complete(caplog: pytest.LogCaptureFixture) -> None:
    follower = Follower()
    with caplog.at_level(logging.INFO, logger="pipeline"):
        for character in "one\ntwö\nthree":
            follower.feed(character)
        assert [record.getMessage() for record in caplog.records] == ["one", "twö"]
        follower.feed("", ended=True)
    assert [record.getMessage() for record in caplog.records] == ["one", "twö", "three"]


@pytest.mark.parametrize(("permanent", "kind"), [(True, JobRefused), (False, JobFailed)])
def test_the_error_that_ended_the_job_is_kept(permanent: bool, kind: type[Exception]) -> None:
    follower = Follower()
    error = {"message": "no rows", "permanent": permanent}
    follower.feed(f"{ERROR}{json.dumps(error)}\n", ended=True)
    assert type(follower.error("it ended")) is kind
    assert str(follower.error("it ended")) == "no rows"


def test_an_error_of_memory_is_the_first_line_of_its_message_with_advice() -> None:
    text = "Memory on the node (IP: 10.0.0.7) was 22.87GB used / 23.54GB limit\nTop 10 memory users: PID"
    error = errors.job_error(OutOfMemoryError(text), folder=URI("/nowhere"))
    assert str(error).startswith(f"OutOfMemoryError: {text.splitlines()[0]}; use fewer --workers, a smaller batch_size")
    assert type(error) is JobRefused and "Top 10" not in str(error)
