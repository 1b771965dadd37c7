"""A run without Ray: every stage in the flow's own process."""

from storage import files
from storage.uri import URI
from tasks.cluster import Cluster
from tasks.follow import Follower, JobFailed, JobRefused
from tasks.jobs import driver, in_process
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.spec import JobSpec
from tasks.stage import tidy


class Local(Cluster):
    """What `--workers 0` has in place of a cluster: this process, so that a breakpoint in model or loop works."""

    def run(self, stage: str, spec: JobSpec, *, target: URI, scratch: URI) -> None:
        """Do here what the job would do, its lines and progress going to the logger of the running task.

        Raises `JobRefused` for an error that would come again and `JobFailed` for any other, with it as the cause.
        """
        follower = Follower(stage)
        files.replace(scratch.child(f"{stage}.json"), spec.model_dump_json(indent=1).encode())  # names what is in use
        try:
            in_process.run(spec, tell=follower.line)
        except DeadlineExceeded:
            raise
        except Exception as error:
            found = driver.described(error)
            kind = JobRefused if found["permanent"] else JobFailed
            raise kind(f"{found['type']}: {found['message']}") from error
        tidy(scratch)
