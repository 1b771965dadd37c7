"""Errors of a job: which end it, in which words, and which leave it to a restart."""

from pathlib import Path

import pytest
from ray.exceptions import OutOfMemoryError, RayTaskError

from storage import manifest
from storage.uri import URI
from tasks.jobs import errors
from tasks.jobs.train import worker


def test_what_ray_wrapped_is_left_for_the_driver_without_its_traceback(tmp_path: Path) -> None:
    error = manifest.Damaged("train/part is damaged: restore it, then run again")
    attempt = URI(str(tmp_path / "attempt-1"))
    wrapped = RayTaskError("read", "Traceback\n" + "line\n" * 1000, error).as_instanceof_cause()
    assert not worker.is_saved_on_every_rank(wrapped, attempt)
    with pytest.raises(errors.JobRefused, match="^Damaged: train/part is damaged: restore it, then run again$"):
        errors.raise_saved_error(attempt)


def test_an_unexpected_error_keeps_its_whole_traceback_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("is it up? http://me:hidden@host/?key=hidden fails")  # as a line of any frame may end
    failure = errors.job_error(caught.value, folder=URI(str(tmp_path)))
    trace = Path(str(failure).partition("full traceback: ")[2]).read_text()
    assert "as a line of any frame may end" in trace
    assert trace.endswith("RuntimeError: is it up? http://***@host/ fails\n") and "hidden" not in trace


@pytest.mark.parametrize("error", [FileNotFoundError("attempt-1/epoch-0001"), OutOfMemoryError("killed")], ids=repr)
def test_an_error_after_which_a_restart_may_help_is_not_left(error: Exception, tmp_path: Path) -> None:
    attempt = URI(str(tmp_path / "attempt-1"))
    assert not worker.is_saved_on_every_rank(error, attempt) and not errors.has_saved_error(attempt)
