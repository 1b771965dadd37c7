"""Link to a job in Ray's dashboard, on the page of the running flow; its errors never fail the job."""

import contextlib
from collections.abc import Iterator
from uuid import UUID

from storage.uri import redact, redact_text
from tasks.orchestration.stage import logger


@contextlib.contextmanager
def job_link(stage: str, job: str, address: str, *, how_to_log_in: str = "", is_kept: bool) -> Iterator[None]:
    """Show a link to the job of `stage` in the block, and afterwards too if it `is_kept`; do nothing outside a flow."""
    from prefect.artifacts import create_link_artifact
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    artifact: UUID | None = None
    link = f"{redact(address)}/#/jobs/{job}"
    about, text = f"Ray dashboard of {stage} (during this run){how_to_log_in}", f"{stage} in the Ray dashboard"
    if flow_run.id:
        try:
            created = create_link_artifact(link, key="ray-dashboard", link_text=text, description=about)
            assert isinstance(created, UUID)  # a coroutine only in async code
            artifact = created
        except Exception as error:  # a server that does not answer now
            logger().warning("the link to the Ray dashboard cannot be shown: %s", redact_text(str(error)))
    try:
        yield
    finally:
        if artifact and not is_kept:
            with contextlib.suppress(Exception), get_client(sync_client=True) as client:
                client.delete_artifact(artifact)
