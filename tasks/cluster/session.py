"""Choice of a run's runner: a local Ray, the cluster that RAY_ADDRESS names, or this process."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from storage.uri import Root
from tasks.cluster.capacity import check_disk, check_workers
from tasks.cluster.node_checks import check_nodes
from tasks.cluster.ray_jobs import RayJobs
from tasks.cluster.runner import InProcessRunner, Runner
from tasks.jobs.scaling import ANY, Needs, Workers
from tasks.planning import machine

_early: ContextVar[list[RayJobs]] = ContextVar("early")
"""Holds the Ray that `starting` started for the next session; empty once a session has taken it."""


@contextlib.contextmanager
def starting(*, wanted: bool) -> Iterator[None]:
    """Start a Ray in advance, if `wanted`, for the first session inside the context."""
    jobs = RayJobs(wanted=wanted)
    token = _early.set([jobs] if wanted else [])
    try:
        yield
    finally:
        _early.reset(token)
        jobs.end()


@contextlib.contextmanager
def session(root: Root, *, wanted: bool, workers: Workers, needs: Needs = ANY) -> Iterator[Runner]:
    """Yield the runner of one run; start Ray at once if `wanted`, else only when a job is submitted.

    Args:
        root: Where the run stores its results.
        wanted: True if it is known that there will be a job.
        workers: As asked; 0 runs everything in this process, without Ray.
        needs: Resources that each worker needs.

    Raises:
        ValueError: A job is wanted, but there can never be the workers, the disk is full or a node is unfit.
    """
    with machine.claim_released():
        if wanted:
            check_workers(workers, needs)
            check_disk(root)
            check_nodes(root, workers, needs)
        if workers == 0:
            yield InProcessRunner()
            return
        early = _early.get([])
        in_advance = wanted and bool(early)
        jobs = early.pop() if in_advance else RayJobs(wanted=wanted)
        try:
            yield jobs
        finally:
            jobs.dismiss() if in_advance else jobs.end()  # `starting` waits for the end of its Ray
