"""GPUs that Ray only counts: the resources that are requested, what each worker gets, and no fallback to the CPU."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from storage.kinds import CheckpointURI, DatasetURI
from storage.uri import Root
from tasks.jobs.spec import JobSpec
from tasks.runners.jobs_api import JOB_ENV
from tasks.runners.local_runner import start_ray
from tasks.stages import Predict, Train
from tests.jobs import raw
from tests.prefect_system import free_port
from tests.runs import CHECKOUT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPUs of this machine are real"),
    pytest.mark.timeout(900),
]
_POOL = """
import json, os, sys, time
import ray
from pathlib import Path
from tasks.jobs.ray_data import RayData, configure
from tasks.jobs.spec import JobSpec
from tasks.stages import Predict

called = Path(sys.argv[2])

class Actor:
    def __init__(self, *, stage, threads, sharing, device):
        self.found = {"threads": threads, "sharing": sharing, "device": device, "pid": os.getpid()}

    def __call__(self, row):
        (called / str(os.getpid())).touch()
        while len(list(called.iterdir())) < 4:  # none may take the parts of those that start later
            time.sleep(0.05)
        held = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        found = self.found | {"held": held, "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
        return {"item": found}

ray.init(logging_level="WARNING")
configure(max_cpus=None)
spec = JobSpec[Predict].model_validate_json(sys.argv[1])
data = RayData()
rows = data.from_items(list(range(40))).map(Actor, **data.actor_pool(spec, most=40)).iter_rows()
print(json.dumps([row["item"] for row in rows]))
"""
_TRAIN = """
import json, os, sys, time
import ray
from pathlib import Path
from ray.train.torch import TorchConfig
from tasks.stages import Train
from tasks.jobs.ray_data import RayData
from tasks.jobs.spec import JobSpec
from tasks.jobs.train import job, worker

def on_one_rank(config):
    import ray.train
    from ray.train.torch import get_device
    context, held = ray.train.get_context(), ray.get_runtime_context().get_accelerator_ids()["GPU"]
    found = {"rank": context.get_world_rank(), "world_size": context.get_world_size(), "held": held}
    found |= {"visible": os.environ["CUDA_VISIBLE_DEVICES"], "device": str(get_device())}
    Path(folder, str(found["rank"])).write_text(json.dumps(found))

ray.init(logging_level="WARNING")
folder = sys.argv[2]
worker.CheckedTorchConfig = lambda timeout_s: TorchConfig(backend="gloo", timeout_s=timeout_s)
job.train_on_one_rank = on_one_rank
job.attempts.finish = lambda *_, **__: None
job.run(JobSpec[Train].model_validate_json(sys.argv[1]), RayData())
"""


@pytest.fixture(scope="module")
def env() -> Iterator[Mapping[str, str]]:
    """What connects a process to a Ray of 2 CPUs that counts 4 GPUs."""
    port = free_port()
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    env = os.environ | JOB_ENV | auth | {"PYTHONPATH": str(CHECKOUT), "RAY_ADDRESS": f"127.0.0.1:{port}"}
    ray = start_ray(env, "--num-cpus=2", "--num-gpus=4", port=port, has_dashboard=False)
    try:
        ray.wait()
        yield env
    finally:
        ray.child.end()


def run(program: str, stage: Train | Predict, folder: Path, *, env: Mapping[str, str]) -> str:
    """Run a program with the spec of the stage's job and a new folder for what it writes; return what it printed."""
    folder.mkdir()
    command = [sys.executable, "-c", program, JobSpec(stage=stage).model_dump_json(), str(folder)]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_each_actor_has_a_gpu_to_itself_where_there_are_fewer_cpus(
    env: Mapping[str, str], prepared: DatasetURI, tmp_path: Path
) -> None:
    root = Root(str(tmp_path))
    stage = raw.to_predict(root, CheckpointURI(root.child("checkpoints/small-0123456789ab")), prepared)
    printed = run(_POOL, stage, tmp_path / "called", env=env)
    items = json.loads(printed.splitlines()[-1])
    assert {(item["device"], item["sharing"], item["threads"]) for item in items} == {("cuda", 4, 1)}
    by_actor = {item["pid"]: (item["held"], item["visible"]) for item in items}
    assert sorted(visible for _, visible in by_actor.values()) == [str(number) for number in range(4)]
    assert all(held == [visible] for held, visible in by_actor.values())


def test_each_rank_computes_on_a_gpu_of_its_own(env: Mapping[str, str], prepared: DatasetURI, tmp_path: Path) -> None:
    stage = raw.to_train(Root(str(tmp_path)), prepared, model="small-cnn").model_copy(update={"workers": 4})
    run(_TRAIN, stage, tmp_path / "ranks", env=env)
    items = [json.loads(file.read_text()) for file in sorted((tmp_path / "ranks").iterdir())]
    assert [item["rank"] for item in items] == list(range(4)) and {item["world_size"] for item in items} == {4}
    assert sorted(item["device"] for item in items) == [f"cuda:{number}" for number in range(4)]
    assert sorted(item["held"][0] for item in items) == [str(number) for number in range(4)]
