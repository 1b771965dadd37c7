"""Whether every node of a cluster can do a run's work, asked before anything is begun: versions, disk, storage."""

import functools
import json
import os
import shlex
import time
import uuid
from collections.abc import Iterator

from storage import files
from storage.uri import URI, Root, masked
from tasks import jobs_api
from tasks.capacity import LEAST_FREE_BYTES
from tasks.jobs.scale import Workers
from tasks.jobs.spec import ASKED, NODES, Node

_LIMIT_S = 90
"""How long the nodes may take: those that do not answer within 30 s are told by name."""
_POLL_S = 0.2


def check_nodes(root: Root, workers: Workers = None) -> str:
    """Return what the nodes of the cluster have in common; nothing is asked where RAY_ADDRESS names none.

    Raises `ValueError` naming the nodes, what is wrong and what to do when one cannot run a task, has other versions
    than this process or hardly any disk left, or when `root` is not the same place for all of them and this process.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if not address or workers == 0:
        return "this machine alone"
    nodes = _nodes(address, root)
    problems = list(find_problems(nodes, root, here=Node.here(name="here", probe="")))
    if problems:
        raise ValueError(f"RAY_ADDRESS={masked(address)}: " + "; ".join(problems))
    least = min(node.free for node in nodes) / 1e9
    each = f"Python {nodes[0].python}, Ray {nodes[0].ray}, torch {nodes[0].torch}, at least {least:.1f} GB of disk free"
    return f"{len(nodes)} share {root}; {each}"


def find_problems(nodes: tuple[Node, ...], root: Root, *, here: Node) -> Iterator[str]:
    """Each thing that keeps some of `nodes` from working on `root` for the process `here`, with their names."""

    def named(some: list[Node]) -> str:
        return f"node{'s' * (len(some) > 1)} {', '.join(node.name for node in some)}"

    for node in nodes:
        if node.trouble:
            yield f"node {node.name} {node.trouble}"
    answered = [node for node in nodes if not node.trouble]
    for what, title in (("python", "Python"), ("ray", "Ray"), ("torch", "torch")):
        wanted = getattr(here, what)
        others = [node for node in answered if getattr(node, what) != wanted]
        if others:
            found = ", ".join(sorted({str(getattr(node, what)) for node in others}))
            yield f"{named(others)} has {title} {found}, this process {wanted}: install requirements.lock there"
    if full := [node for node in answered if node.free < LEAST_FREE_BYTES]:
        yield f"the disk of {named(full)} has less than {LEAST_FREE_BYTES / 1e6:.0f} MB free: make room there"
    if apart := [node for node in answered if not node.sees_storage]:
        advice = "check AWS_ENDPOINT_URL there" if root.is_s3 else "give s3://bucket/prefix or a shared file system"
        yield f"--storage: {root} is another folder on {named(apart)}: {advice}"


@functools.cache
def _nodes(address: str, root: Root) -> tuple[Node, ...]:
    """What every live node says of itself, asked once in a process; nothing of the probes stays."""
    folder = root.child(f"_probe-{uuid.uuid4().hex}")
    files.create(folder.child(ASKED), b"asked")
    try:
        nodes = _ask(address, folder)
        return tuple(_as_seen_from_here(node, folder) for node in nodes)
    finally:
        files.remove(folder)


def _as_seen_from_here(node: Node, folder: URI) -> Node:
    """`node`, which does not share the storage either when what it wrote is not seen here."""
    sees = node.sees_storage and (node.trouble is not None or files.exists(folder.child(node.probe)))
    return node.model_copy(update={"sees_storage": sees})


def _ask(address: str, folder: URI) -> list[Node]:
    """What a job on the cluster is told by each node; raises `ValueError` when no job can run there."""
    where = f"RAY_ADDRESS={masked(address)}"
    try:
        client = jobs_api.connect(address)
        job = client.submit_job(
            entrypoint=f"exec python -m tasks.jobs.nodes {shlex.quote(folder)}",
            submission_id=f"nodes-{folder.fingerprint}",
            runtime_env=jobs_api.what_goes_along(),
        )
        deadline = time.monotonic() + _LIMIT_S
        while not (status := client.get_job_status(job)).is_terminal() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        log = client.get_job_logs(job)
        if not status.is_terminal():
            client.stop_job(job)
    except Exception as error:
        raise ValueError(f"{where}: it does not take a job: {masked(' '.join(str(error).split()))}") from error
    told = [line.partition(NODES)[2] for line in log.splitlines() if NODES in line]
    if not told:
        lines = [line for line in log.splitlines() if line.strip()] or ["it wrote nothing"]
        raise ValueError(f"{where}: a job cannot run there ({status}): {lines[-1].strip()}; see docs/cluster.md")
    return [Node.model_validate(node) for node in json.loads(told[0])["nodes"]]
