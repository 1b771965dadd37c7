"""Node checks before a run: versions and access to storage on every node of the cluster, the GPUs of this machine."""

import functools
import shlex
import uuid
from collections.abc import Iterator, Sequence

from storage import files
from storage.terminal import count
from storage.uri import Root, redact
from tasks.jobs import nodes
from tasks.jobs.nodes import Node
from tasks.resources import capacity, devices, machine
from tasks.resources.scaling import ANY, Needs, Workers
from tasks.runners import jobs_api

_LIMIT_S = 90
"""Timeout of the whole check, in seconds; after 30 s the check's own job reports the nodes that did not answer."""

_CODE_ADVICE = "start Ray there without a copy of `tasks` or `storage` among Python's paths"


def check_nodes(root: Root, workers: Workers = None, needs: Needs = ANY) -> str:
    """Check the nodes of the cluster that RAY_ADDRESS names, else this machine; return what they have in common.

    Raises `ValueError` if a node cannot run a task, differs in versions from this process or sees another folder at
    `root`, or if torch cannot use the GPUs of this machine (unless `needs` no GPU); the message names the nodes, what
    is wrong and what to do.
    """
    address = capacity.cluster_address()
    if not address or workers == 0:
        if needs.device != "cpu" and (trouble := _trouble_here()):
            raise ValueError(f"torch cannot use the GPUs of this machine: {trouble}; or {devices.CPU_ADVICE}")
        return "only this machine"
    answers = _answers(address, root)
    if problems := list(find_problems(answers, root, this=nodes.versions())):
        raise ValueError(f"RAY_ADDRESS={redact(address)}: " + "; ".join(problems))
    common = ", ".join(f"{title} {version}" for title, version in answers[0].versions.items() if title != "code")
    return f"{count(len(answers), 'node')} share{'s' * (len(answers) == 1)} {root}; {common}"


def find_problems(answers: Sequence[Node], root: Root, *, this: dict[str, str | None]) -> Iterator[str]:
    """Yield each problem that keeps a node from working on `root` together with the process of the versions `this`."""
    s3_advice = "set AWS_ENDPOINT_URL here, which jobs get, or there; ~/.aws/config is not sent"
    on_storage = s3_advice if root.is_s3 else "use s3://bucket/prefix or a shared file system"
    for node in answers:
        if node.trouble:
            yield f"node {node.name} {node.trouble}" + (f"; {on_storage}" if root in node.trouble else "")
        for title, version in node.versions.items():
            if version != this[title]:
                advice = _CODE_ADVICE if title == "code" else "install the versions of requirements.lock there"
                yield f"node {node.name}: {title} {version}, this process: {this[title]}; {advice}"


@functools.cache
def _trouble_here() -> str | None:
    return devices.trouble_in_child() if machine.gpus() else None


@functools.cache
def _answers(address: str, root: Root) -> tuple[Node, ...]:
    """Ask every live node about itself, once per process; remove all probes afterwards."""
    folder = root.child(f"_probe-{uuid.uuid4().hex}")
    files.put(folder.child(nodes.ASKED), b"asked", mode="create")
    command = f"exec python -m tasks.jobs.nodes {shlex.quote(folder)}"
    name = f"nodes-{folder.fingerprint}"
    try:
        answer = jobs_api.ask(address, command, marker=nodes.NODES, name=name, limit_s=_LIMIT_S)
        return tuple(Node.model_validate(node) for node in answer["nodes"])
    finally:
        files.remove(folder)
