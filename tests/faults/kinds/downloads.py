"""Faults of downloads. Another mirror is used, and only the published bytes are accepted."""

import signal

from storage import manifest
from storage.uri import URI
from tasks.learning import recipes, sources
from tasks.learning.sources import mnist_sample
from tasks.planning import make_plan
from tests import mirrors
from tests.faults.case import Case, Failed
from tests.faults.harness import CANARY
from tests.faults.kinds.register import kind
from tests.ingested import ingested
from tests.runs import Run


@kind("flow killed in download", at="/downloads/")  # between two files: the first is kept
@kind("flow killed in ingest", at="/train/part-")  # between two parts: nothing is fetched again
def _killed(case: Case, *, at: str) -> None:
    case.begin(after=None)
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        case.wait(_start(case, mirror.address, "written", at))
        first, before = mirror.requests[0], len(mirror.requests)
        _await_ingest(case, _start(case, mirror.address))
        again = mirror.requests[before:]
    # In the download, a run asks for the first file once, to see whether the mirror answers.
    if again.count(first) > 1 if at == "/downloads/" else again:
        raise Failed(f"files that are there are fetched again: {again}")


@kind("download tampered", fault="wrong")
@kind("download stalls", fault="stall")
def _spoilt(case: Case, *, fault: mirrors.Fault) -> None:
    case.begin(after=None)
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        name = case.random.choice([file.name for file in sources.load("mnist-sample").files])
        mirror.misbehave(name, always=fault)
        case.damage(lambda: None, what=f"{name}: {fault}")
        run = _start(case, mirror.address)
        _await_ingest(case, run)
        if not mirror.requests.count(name):
            raise Failed("the spoilt file was never asked for")
        if not run.says(f"{name}: {mirror.address}"):
            raise Failed("the log does not name the bad mirror")


def _start(case: Case, address: str, point: str | None = None, at: str = "") -> Run:
    """A run that downloads the sample from `address` first."""
    case.arguments = ["--recipe", "mnist-sample-resnet18", "--mirror", address, "--storage", case.root]
    case.arguments += ["--workers", "0"]
    return case.start(point, at)


def _await_ingest(case: Case, run: Run) -> None:
    """End `run` once it has ingested what it downloaded, and compare with what the archives hold."""
    case.reaches(run, lambda event: event["point"] == "preprocess", "what was downloaded was ingested")
    case.send_signal(run.process.pid, signal.SIGTERM, what="flow, which has shown enough")
    case.wait(run)
    (place,) = case.paths("datasets/raw/*/" + manifest.NAME)
    recipe = recipes.load("mnist-sample-resnet18")
    expected = ingested(make_plan.make_plan(storage=str(case.harness.folder / "wanted"), recipe=recipe, workers=0))
    if manifest.verify(URI(str(place.parent))).files != manifest.load(expected).files:
        raise Failed("the downloaded rows are not those of the archives")
    if CANARY in place.read_text():
        raise Failed("a secret stands in the manifest")
