"""Faults of S3. A run survives transient ones and reports others; the same command then resumes."""

from typing import Any, get_args

from storage import manifest
from tests.faults.case import Case
from tests.faults.kinds.register import kind
from tests.faults.proxy import Fault


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
        case.inject_request_faults(fault, "GET", source, times=1 if fault in ("stall", "403") else 2)
    elif way == "writes":
        case.inject_request_faults(fault, "PUT", target)
    else:
        shelf = "/checkpoints/" if "epoch" in target else target
        case.inject_request_faults(fault, "PUT", case.harness.golden_path(shelf, "/" + manifest.NAME))
    run = case.start()
    if fault != "403":
        return case.expect_recovery(run, may_retry=False)
    case.expect_refusal(run, "PermissionError")
    return case.finish()


for _fault in get_args(Fault):
    for _way in ("reads", "writes", "commit"):
        if _fault != "truncated" or _way == "reads":
            _is_quick = (_fault, _way) in [("503", "reads"), ("lost", "commit")]
            kind(f"S3: {_fault} on {_way}", quick=_is_quick, fault=_fault, way=_way)(_s3_fault)
