"""Ray job that checks each node of the cluster: versions, free disk, GPUs, and a probe of the storage.

`python -m tasks.jobs.nodes FOLDER [--gpus]`; the caller has put the file `asked` into that folder. With `--gpus`, a
node that counts GPUs also asks torch whether it can use them.
"""

import importlib
import platform
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from storage import error_policy, files
from storage.producer import producer
from storage.uri import URI, redact_text
from tasks.jobs import errors, events
from tasks.resources import devices, scaling

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
    probe: str
    """Name of the file that the node writes to the probe's folder."""
    python: str = ""
    """Major and minor version of Python."""
    ray: str | None = None
    torch: str | None = None
    """Version of torch; None: not installed."""
    code: str | None = None
    """Digest of the code that it imports."""
    free: int = 0
    """Free bytes on the disk of Ray's own files."""
    sees_storage: bool = True
    """True if the node found the caller's file."""
    gpu_trouble: str | None = None
    """Reason why torch cannot use the GPUs that Ray counts there, and what to do; None: it can, or was not asked."""
    trouble: str | None = None
    """Reason why the node cannot work, if known."""

    @classmethod
    def here(cls, *, name: str, probe: str, **observed: Any) -> Self:
        """Describe the node of this process; CPU and GPU builds of a library count as the same version."""
        ray, torch = ((producer()[name] or "").partition("+")[0] or None for name in ("ray", "torch"))
        python = ".".join(platform.python_version_tuple()[:2])
        free = shutil.disk_usage(tempfile.gettempdir()).free
        code = producer()["code"]
        return cls(name=name, probe=probe, python=python, ray=ray, torch=torch, code=code, free=free, **observed)


def main() -> None:
    """Print the answers of all live nodes as one marked line of JSON."""
    import ray  # the flow imports this module without Ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    module = importlib.import_module("tasks.jobs.nodes")  # workers cannot import `__main__`
    folder, asks_gpus = URI(sys.argv[1]), "--gpus" in sys.argv
    ray.init(logging_level="WARNING")
    task = ray.remote(num_cpus=0, max_retries=0)(module.look)
    tasks: dict[ray.ObjectRef, dict[str, str]] = {}
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        names = {"name": f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})", "probe": node["NodeID"]}
        has_gpus = asks_gpus and scaling.num_gpus(node["Resources"]) > 0
        tasks[task.options(scheduling_strategy=on_node).remote(folder, names, has_gpus)] = names
    ready, silent = ray.wait(list(tasks), num_returns=len(tasks), timeout=_LIMIT_S)
    answers = [_answer(reference, tasks[reference]) for reference in ready]
    late = {"trouble": f"did not answer within {_LIMIT_S} s"}
    answers += [Node.model_validate(tasks[reference] | late) for reference in silent]
    gone = {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
    events.write_event(NODES, nodes=[answer.model_dump() for answer in answers if answer.probe not in gone])


def look(folder: str, names: dict[str, str], has_gpus: bool = False) -> str:
    """Return this node's state as JSON; write its probe to `folder` only if it finds the caller's file there."""
    uri = URI(folder)
    sees, trouble = True, None
    try:
        files.read(uri.child(ASKED))
        files.put(uri.child(names["probe"]), b"seen", mode="create")
    except FileNotFoundError:
        sees = False
    except Exception as error:
        if not error_policy.is_storage_error(error):
            raise
        trouble = f"cannot use {uri.parent}: {redact_text(' '.join(str(error).split()))}"
    gpu_trouble = devices.trouble_in_child(hidden_by_ray=True) if has_gpus else None
    return Node.here(**names, sees_storage=sees, trouble=trouble, gpu_trouble=gpu_trouble).model_dump_json()


def _answer(reference: "ray.ObjectRef", names: dict[str, str]) -> Node:
    import ray

    try:
        return Node.model_validate_json(ray.get(reference))
    except Exception as error:
        lines = str(errors.root_cause(error)).strip().splitlines() or [type(error).__name__]
        return Node.model_validate(names | {"trouble": f"could not run a task: {lines[-1]}"})


if __name__ == "__main__":
    main()
