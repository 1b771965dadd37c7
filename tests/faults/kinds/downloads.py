"""Downloads. Another mirror is taken, and nothing but the published bytes."""

import signal

from storage import manifest
from storage.uri import URI, DatasetURI
from tasks.download import ingest
from tasks.learning import datasets
from tasks.learning.datasets import mnist_sample
from tests import mirrors
from tests.faults.case import Case, Failed
from tests.faults.kinds.register import kind
from tests.faults.lab import CANARY
from tests.runs import Run


@kind("flow killed in download")
def _flow_killed_in_download(case: Case) -> None:
    case.begin(after=None)
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        case.wait(_downloading(case, mirror.address, "write", "/train/part-"))
        _await_download(case, _downloading(case, mirror.address))


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


def _await_download(case: Case, run: Run) -> None:
    """End `run` once it has downloaded, and compare with what the archives hold."""
    case.reaches(run, lambda event: event["point"] == "preprocess", "the download ended")
    case.strike(run.process.pid, signal.SIGTERM, what="flow, which has shown enough")
    case.wait(run)
    (made,) = case.paths("datasets/raw/*/" + manifest.NAME)
    wanted = DatasetURI(str(case.lab.folder / "wanted-000000000000"))
    ingest(datasets.load("mnist-sample"), wanted, scratch=wanted.child("scratch"), log=lambda *line: None)
    found = manifest.verify(URI(str(made.parent)))
    if found.files != manifest.load(wanted).files:
        raise Failed("the downloaded rows are not those of the archives")
    if CANARY in made.read_text():
        raise Failed("a secret stands in the manifest")


def _download_spoilt(case: Case, fault: mirrors.Fault) -> None:
    case.begin(after=None)
    with mirrors.serve(mnist_sample.FOLDER) as mirror:
        name = case.random.choice([file.name for file in datasets.load("mnist-sample").files])
        mirror.misbehave(name, always=fault)
        case.damage(lambda: None, what=f"{name}: {fault}")
        run = _downloading(case, mirror.address)
        _await_download(case, run)
        if not mirror.requests.count(name):
            raise Failed("the spoilt file was never asked for")
        if not run.says(f"{name}: {mirror.address}"):
            raise Failed("nobody was told that the mirror is bad")
