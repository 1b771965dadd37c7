"""Link to a job in Ray's dashboard, on the page of the running flow; its errors never fail the job."""

from storage.uri import redact, redact_text
from tasks.orchestration.stage import logger


def show_job_link(stage: str, job: str, address: str) -> None:
    """Show a link to the job of `stage`; do nothing outside a flow."""
    from prefect.artifacts import create_link_artifact
    from prefect.runtime import flow_run

    if not flow_run.id:
        return
    link, text = f"{redact(address)}/#/jobs/{job}", f"{stage} in the Ray dashboard"
    try:
        create_link_artifact(link, key="ray-dashboard", link_text=text, description=f"Ray dashboard of {stage}")
    except Exception as error:  # a server that does not answer now
        logger().warning("the link to the Ray dashboard cannot be shown: %s", redact_text(str(error)))
