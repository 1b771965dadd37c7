"""Node checks before a run: versions, free disk, GPUs and access to storage on every node of the cluster."""

import functools
import shlex
import uuid
from collections.abc import Iterator

from storage import files
from storage.terminal import count
from storage.uri import URI, Root, redact
from tasks.jobs.nodes import ASKED, NODES, Node
from tasks.resources import capacity, devices, machine
from tasks.resources.scaling import ANY, Needs, Workers
from tasks.runners import jobs_api

_LIMIT_S = 90
"""Timeout of the whole check, in seconds; after 30 s the check's own job reports the nodes that did not answer."""


def check_nodes(root: Root, workers: Workers = None, needs: Needs = ANY) -> str:
    """Check the nodes of the cluster that RAY_ADDRESS names, else this machine; return what they have in common.

    Raises `ValueError` if a node cannot run a task, differs in versions from this process, is low on disk, has GPUs
    that torch cannot use (unless `needs` no GPU), or sees another folder at `root` than this process; the message names
    the nodes, what is wrong and what to do.
    """
    address, uses_gpus = capacity.cluster_address(), needs.device != "cpu"
    if not address or workers == 0:
        if uses_gpus and (trouble := _trouble_here()):
            raise ValueError(f"torch cannot use the GPUs of this machine: {trouble}; or {devices.CPU_ADVICE}")
        return "only this machine"
    nodes = _nodes(address, root, asks_gpus=uses_gpus)
    problems = list(find_problems(nodes, root, this=Node.here(name="here", probe="")))
    if problems:
        raise ValueError(f"RAY_ADDRESS={redact(address)}: " + "; ".join(problems))
    least = min(node.free for node in nodes) / 1e9
    each = f"Python {nodes[0].python}, Ray {nodes[0].ray}, torch {nodes[0].torch}, at least {least:.1f} GB of disk free"
    return f"{count(len(nodes), 'node')} share{'s' * (len(nodes) == 1)} {root}; {each}"


def find_problems(nodes: tuple[Node, ...], root: Root, *, this: Node) -> Iterator[str]:
    """Yield each problem that keeps some of `nodes` from working on `root` together with the process `this`."""

    def named(some: list[Node]) -> str:
        return f"node{'s' * (len(some) > 1)} {', '.join(node.name for node in some)}"

    s3_advice = "set AWS_ENDPOINT_URL here, which jobs get, or there; ~/.aws/config is not sent"
    advice_on_storage = s3_advice if root.is_s3 else "use s3://bucket/prefix or a shared file system"
    for node in nodes:
        if node.trouble:
            yield f"node {node.name} {node.trouble}" + (f"; {advice_on_storage}" if root in node.trouble else "")
    answered = [node for node in nodes if not node.trouble]
    locked = "install the versions of requirements.lock there"
    started = "start Ray there without a copy of `tasks` or `storage` among Python's paths"
    for what, title, advice in (
        *(("python", "Python", locked), ("ray", "Ray", locked), ("torch", "torch", locked)),
        ("code", "code", started),
    ):
        wanted = getattr(this, what)
        others = [node for node in answered if getattr(node, what) != wanted]
        if others:
            versions = ", ".join(sorted({str(getattr(node, what)) for node in others}))
            yield f"{named(others)}: {title} {versions}, this process: {wanted}; {advice}"
    for node in answered:
        if node.gpu_trouble:
            yield f"torch cannot use the GPUs of node {node.name}: {node.gpu_trouble}; or {devices.CPU_ADVICE}"
    if full := [node for node in answered if node.free < capacity.LEAST_FREE_BYTES]:
        least = f"{capacity.LEAST_FREE_BYTES / 1e6:.0f} MB"
        yield f"the disk of {named(full)} has less than {least} free: free some space there"
    if apart := [node for node in answered if not node.sees_storage]:
        yield f"--storage: {root} is a different folder on {named(apart)}: {advice_on_storage}"


@functools.cache
def _trouble_here() -> str | None:
    return devices.trouble_in_child() if machine.gpus() else None


@functools.cache
def _nodes(address: str, root: Root, *, asks_gpus: bool) -> tuple[Node, ...]:
    """Ask every live node about itself, once per process; remove all probes afterwards."""
    folder = root.child(f"_probe-{uuid.uuid4().hex}")
    files.put(folder.child(ASKED), b"asked", mode="create")
    command = f"exec python -m tasks.jobs.nodes {shlex.quote(folder)}{' --gpus' * asks_gpus}"
    name = f"nodes-{folder.fingerprint}"
    try:
        answer = jobs_api.ask(address, command, marker=NODES, name=name, limit_s=_LIMIT_S)
        return tuple(_as_seen_from_here(Node.model_validate(node), folder) for node in answer["nodes"])
    finally:
        files.remove(folder)


def _as_seen_from_here(node: Node, folder: URI) -> Node:
    """Clear `sees_storage` of a node whose probe cannot be seen from here."""
    sees = node.sees_storage and (node.trouble is not None or files.exists(folder.child(node.probe)))
    return node.model_copy(update={"sees_storage": sees})
