"""Ray job that runs one task on each node of the cluster: its versions, and a probe of the storage.

`python -m tasks.jobs.nodes FOLDER`; the caller has put the file `asked` into that folder.
"""

import importlib
import platform
import sys
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from storage import error_policy, files
from storage.producer import producer
from storage.uri import URI, redact_text
from tasks.jobs import errors, events

if TYPE_CHECKING:
    import ray

NODES = "::nodes "
"""Start of the log line with the state of every node as JSON: a list of `Node`."""
ASKED = "asked"
"""File that the caller puts into the probe's folder, for the nodes to find."""
_LIMIT_S = 30
"""Seconds that a node may take to answer."""


class Node(BaseModel, frozen=True, extra="forbid"):
    """State of one node of a cluster."""

    name: str
    """Address and the first digits of Ray's id, since one machine may run several nodes."""
    versions: dict[str, str | None] = {}
    """As `versions` says; empty if the node did not answer."""
    trouble: str | None = None
    """Reason why the node cannot work, if known."""


def versions() -> dict[str, str | None]:
    """Return what must be the same on all nodes: Python, Ray, torch (None: not installed) and the digest of the code.

    CPU and GPU builds of a library count as the same version.
    """
    ray, torch = ((producer()[name] or "").partition("+")[0] or None for name in ("ray", "torch"))
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "Ray": ray, "torch": torch, "code": producer()["code"]}


def main() -> None:
    """Print the answers of all live nodes as one marked line of JSON."""
    import ray  # the flow imports this module without Ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    module = importlib.import_module("tasks.jobs.nodes")  # workers cannot import `__main__`
    ray.init(logging_level="WARNING")
    look_there = ray.remote(num_cpus=0, max_retries=0)(module.look)
    names = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    tasks = {
        node: look_there.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            sys.argv[1], node
        )
        for node in names
    }
    ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=_LIMIT_S)
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] in names]
    answers = [Node(name=f"{names[node]} ({node[:8]})", **_answer(tasks[node])) for node in alive]
    events.write_event(NODES, nodes=[answer.model_dump() for answer in answers])


def look(folder: str, node: str) -> dict[str, Any]:
    """Return the fields of `Node` of this process's `node`; write to `folder` only if the caller's file is there."""
    uri, trouble = URI(folder), None
    try:
        files.read(uri.child(ASKED))
        files.put(uri.child(node), b"seen", mode="create")
    except FileNotFoundError:
        trouble = f"sees another folder at {uri.parent}"
    except Exception as error:
        if not error_policy.is_storage_error(error):
            raise
        trouble = f"cannot use {uri.parent}: {redact_text(' '.join(str(error).split()))}"
    return {"versions": versions(), "trouble": trouble}


def _answer(task: "ray.ObjectRef") -> dict[str, Any]:
    import ray

    try:
        answer: dict[str, Any] = ray.get(task, timeout=0.1)  # it was waited for
        return answer
    except ray.exceptions.GetTimeoutError:
        return {"trouble": f"did not answer within {_LIMIT_S} s"}
    except Exception as error:
        lines = str(errors.root_cause(error)).strip().splitlines() or [type(error).__name__]
        return {"trouble": f"could not run a task: {lines[-1]}"}


if __name__ == "__main__":
    main()
