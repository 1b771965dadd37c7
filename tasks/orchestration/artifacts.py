"""The Prefect artifact of a run: its summary, with a link to its report, on the run's page in the UI."""

import re
from collections.abc import Iterator
from urllib.parse import quote

from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from prefect.variables import Variable

from storage import reference
from storage.decision import METRICS, metric_title
from storage.kinds import ReportURI
from storage.uri import parse_root, redact_text
from tasks.orchestration.stage import logger
from tasks.planning.make_plan import default_storage
from tasks.report_page import ReportData, number

REPORTS_URL = "reports_url"
"""Prefect variable with the address at which the folder `reports` of the default storage root is served."""


def publish(data: ReportData, target: ReportURI, *, registered_model: str) -> None:
    """Publish the summary of a run, unless its task is called alone; never fails the run."""
    if not flow_run.id:
        return
    title = f"{data.recipe_name}: {data.decision.verdict}"
    try:
        create_markdown_artifact(
            key=f"{registered_model}-summary",
            description=title,
            markdown="\n".join([f"# {title}\n", *_summary(data), _report(target)]),
        )
    except Exception as error:  # all results are committed, whether the server answers now or not
        logger().warning("the results cannot be shown on the page of the run: %s", redact_text(str(error)))


def _report(target: ReportURI) -> str:
    """Return a link to the report if it is served, else what to open: browsers follow no `file:` or `s3:` link."""
    page = target.child("index.html")
    if reference.root_of(target) == parse_root(default_storage()):
        address = Variable.get(REPORTS_URL)
        if isinstance(address, str):
            return f"\n[Report page]({address.rstrip('/')}/{quote(target.name)}/index.html)\n"
    how = "Copy it to your machine, then open it in a browser" if page.is_s3 else "Open this file in a browser"
    return f"\n{how}:\n\n    {page}\n"


def _plain(text: str) -> str:
    """Escape `text` so that Markdown shows it literally: with a backslash before any ASCII punctuation."""
    return re.sub(r"[!-/:-@\[-`{-~]", r"\\\g<0>", " ".join(text.split()))


def _summary(data: ReportData) -> Iterator[str]:
    decision = data.decision
    yield f"{_plain(decision.reason)}.\n"
    if data.sample_notice:
        yield f"> **Note:** this is {data.sample_notice}.\n"
    for problem in data.data_problems:
        if not problem.is_minor:
            yield f"> **Note:** {_plain(problem.summary)}.\n"
    champion = decision.metrics.get("champion", {})
    yield "| on the test rows | this model | champion before this run |\n|---|---|---|"
    for name in (*METRICS.values(), "test_loss", "expected_calibration_error", "num_rows"):
        yield f"| {metric_title(name)} | {number(data.evaluated['metrics'][name])} | {number(champion.get(name))} |"
