"""Faults of S3. A run survives transient ones and reports others; the same command then resumes."""

from typing import Any

from storage import manifest
from tests.faults.case import Case, kind
from tests.faults.proxy import Fault


@kind("S3: 503 on reads", quick=True, fault="503", way="reads")
@kind("S3: 500 on writes", fault="500", way="writes")
@kind("S3: 403 on reads", fault="403", way="reads")
@kind("S3: reset on writes", fault="reset", way="writes")
@kind("S3: stall on reads", fault="stall", way="reads")
@kind("S3: truncated on reads", fault="truncated", way="reads")
@kind("S3: slow on commit", fault="slow", way="commit")
@kind("S3: lost on commit", quick=True, fault="lost", way="commit")
def _s3_fault(case: Case, *, fault: Fault, way: str) -> dict[str, Any]:
    after, source, target = case.random.choice(
        [
            ("raw", "/datasets/raw/", "/datasets/prepared/"),
            *[("checkpoint", "/datasets/prepared/", "/predictions/")] * 2,
            ("checkpoint", "/checkpoints/", "/predictions/"),
            ("prepared", "/datasets/prepared/", "/checkpoints/"),
            ("prepared", "/datasets/prepared/", "/epoch-0001/weights"),
        ]
    )
    case.begin(after=after, on_s3=True)
    if way == "reads":
        case.harness.proxy.inject(fault, "GET", part=source, times=1 if fault in ("stall", "403") else 2)
    elif way == "writes":
        case.harness.proxy.inject(fault, "PUT", part=target)
    else:
        shelf = "/checkpoints/" if "epoch" in target else target
        case.harness.proxy.inject(fault, "PUT", part=case.harness.golden_path(shelf, "/" + manifest.NAME))
    run = case.start()
    if fault != "403":
        return case.expect_recovery(run, may_retry=False)
    case.expect_refusal(run, "PermissionError")
    return case.finish()
