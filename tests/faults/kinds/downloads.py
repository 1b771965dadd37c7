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


@kind("flow killed in download")
def _flow_killed_in_download(case: Case) -> None:
    """Between two files: the first is kept, and only the others are fetched afterwards."""
    case.begin(after=None)
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        case.wait(_downloading(case, mirror.address, "written", "/downloads/"))
        first, before = mirror.requests[0], len(mirror.requests)
        _await_ingest(case, _downloading(case, mirror.address))
        if mirror.requests[before:].count(first) > 1:  # a run asks for it once to see whether the mirror answers
            raise Failed("a file that was kept is fetched again")


@kind("flow killed in ingest")
def _flow_killed_in_ingest(case: Case) -> None:
    """Between two parts: nothing is fetched again."""
    case.begin(after=None)
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        case.wait(_downloading(case, mirror.address, "written", "/train/part-"))
        before = len(mirror.requests)
        _await_ingest(case, _downloading(case, mirror.address))
        if len(mirror.requests) > before:
            raise Failed("files that are there are fetched again")


@kind("download truncated")
def _download_truncated(case: Case) -> None:
    _download_spoilt(case, "truncated")


@kind("download tampered")
def _download_tampered(case: Case) -> None:
    _download_spoilt(case, "wrong")


@kind("download stalls")
def _download_stalls(case: Case) -> None:
    _download_spoilt(case, "stall")


@kind("download not found")
def _download_missing(case: Case) -> None:
    _download_spoilt(case, 404)


def _downloading(case: Case, address: str, point: str | None = None, at: str = "") -> Run:
    """A run that downloads the sample from `address` first."""
    case.arguments = ["--recipe", "mnist-sample-resnet18", "--source", address, "--storage", case.root]
    return case.start(point, at)


def _await_ingest(case: Case, run: Run) -> None:
    """End `run` once it has ingested what it downloaded, and compare with what the archives hold."""
    case.reaches(run, lambda event: event["point"] == "preprocess", "what was downloaded was ingested")
    case.send_signal(run.process.pid, signal.SIGTERM, what="flow, which has shown enough")
    case.wait(run)
    (made,) = case.paths("datasets/raw/*/" + manifest.NAME)
    recipe = recipes.load("mnist-sample-resnet18")
    wanted = ingested(make_plan.make_plan(storage=str(case.harness.folder / "wanted"), recipe=recipe, workers=0))
    found = manifest.verify(URI(str(made.parent)))
    if found.files != manifest.load(wanted).files:
        raise Failed("the downloaded rows are not those of the archives")
    if CANARY in made.read_text():
        raise Failed("a secret stands in the manifest")


def _download_spoilt(case: Case, fault: mirrors.Fault) -> None:
    case.begin(after=None)
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        name = case.random.choice([file.name for file in sources.load("mnist-sample").files])
        mirror.misbehave(name, always=fault)
        case.damage(lambda: None, what=f"{name}: {fault}")
        run = _downloading(case, mirror.address)
        _await_ingest(case, run)
        if not mirror.requests.count(name):
            raise Failed("the spoilt file was never asked for")
        if not run.says(f"{name}: {mirror.address}"):
            raise Failed("the log does not name the bad mirror")
