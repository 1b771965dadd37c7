"""Ray job that checks each node of the cluster: versions, free disk, GPUs, and a probe of the storage.

`python -m tasks.jobs.nodes FOLDER [--gpus]`; the caller has put the file `asked` into that folder. With `--gpus`, a
node that counts GPUs also asks torch whether it can use them.
"""

import importlib
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from storage import error_policy, files
from storage.uri import URI, redact_text
from tasks.jobs import errors, events
from tasks.jobs.spec import ASKED, NODES, Node
from tasks.resources import devices, scaling

_LIMIT_S = 30
"""Seconds that a node may take to answer."""


def main() -> None:
    """Print the answers of all live nodes as one marked line of JSON."""
    here = importlib.import_module("tasks.jobs.nodes")  # workers cannot import `__main__`
    folder, asks_gpus = URI(sys.argv[1]), "--gpus" in sys.argv
    ray.init(logging_level="WARNING")
    task = ray.remote(num_cpus=0, max_retries=0)(here.look)
    asked: dict[ray.ObjectRef, dict[str, str]] = {}
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        about = {"name": f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})", "probe": node["NodeID"]}
        has_gpus = asks_gpus and scaling.num_gpus(node["Resources"]) > 0
        asked[task.options(scheduling_strategy=there).remote(folder, about, has_gpus)] = about
    ready, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_LIMIT_S)
    answers = [_answer(one, asked[one]) for one in ready]
    late = {"trouble": f"did not answer within {_LIMIT_S} s"}
    answers += [Node.model_validate(asked[one] | late) for one in silent]
    gone = {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
    events.write_event(NODES, nodes=[answer.model_dump() for answer in answers if answer.probe not in gone])


def look(folder: str, about: dict[str, str], has_gpus: bool = False) -> str:
    """Return this node's state as JSON; write its probe to `folder` only if it finds the caller's file there."""
    uri = URI(folder)
    sees, trouble = True, None
    try:
        files.read(uri.child(ASKED))
        files.create(uri.child(about["probe"]), b"seen")
    except FileNotFoundError:
        sees = False
    except Exception as error:
        if not error_policy.is_storage_error(error):
            raise
        trouble = f"cannot use {uri.parent}: {redact_text(' '.join(str(error).split()))}"
    gpu_trouble = devices.trouble_in_child(hidden_by_ray=True) if has_gpus else None
    return Node.here(**about, sees_storage=sees, trouble=trouble, gpu_trouble=gpu_trouble).model_dump_json()


def _answer(reference: ray.ObjectRef, about: dict[str, str]) -> Node:
    try:
        return Node.model_validate_json(ray.get(reference))
    except Exception as error:
        lines = str(errors.root_cause(error)).strip().splitlines() or [type(error).__name__]
        return Node.model_validate(about | {"trouble": f"could not run a task: {lines[-1]}"})


if __name__ == "__main__":
    main()
