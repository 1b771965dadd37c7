"""Runner without Ray: every stage runs in the flow's own process."""

from storage import files
from storage.uri import URI
from tasks.cluster.job_log import Follower, failure
from tasks.jobs import errors, main
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.spec import JobSpec
from tasks.orchestration.stage import tidy
from tasks.planning import machine


class InProcess:
    """Runner for `--workers 0`: jobs run in this process, so that breakpoints in model and training loop work."""

    def run(self, stage: str, spec: JobSpec, *, target: URI, scratch: URI) -> None:
        """Run the job in this process; its lines and progress go to the logger of the running task.

        Raises `JobRefused` if a retry would fail the same way, else `JobFailed`; the cause is the original error.
        """
        follower = Follower(stage)
        spec = machine.shared(spec)
        files.replace(scratch.child(f"{stage}.json"), spec.model_dump_json(indent=1).encode())  # gc keeps what it names
        try:
            main.run_here(spec, tell=follower.line)
        except DeadlineExceeded:
            raise
        except Exception as error:
            raise failure(errors.described(error, folder=scratch)) from error
        tidy(scratch)
