"""Nodes that a cluster may add: those in its autoscaler's configuration, minus those that are alive."""

from pathlib import Path

import pytest

from tasks.jobs import node_types

HEAD = {"CPU": 4.0, "node:__internal_head__": 1.0}
CPUS, GPUS = {"CPU": 4.0}, {"CPU": 16.0, "GPU": 4.0}
CONFIG = {
    "max_workers": 6,
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 4}, "node_config": {}},
        "cpus": {"resources": {"CPU": 4}, "max_workers": 5},
        "gpus": {"resources": {"CPU": 16, "GPU": 4}, "max_workers": 2},
    },
}
"""As in the file of `ray up`."""
RAY_CLUSTER = {
    "spec": {
        "enableInTreeAutoscaling": True,
        "headGroupSpec": {},
        "workerGroupSpecs": [
            {
                "groupName": "gpus",
                "replicas": 0,
                "maxReplicas": 2,
                "rayStartParams": {"resources": '"{\\"accelerator_type:A100\\": 1}"'},
                "template": {
                    "spec": {"containers": [{"resources": {"limits": {"cpu": "7500m", "nvidia.com/gpu": "1"}}}]}
                },
            },
            {
                "groupName": "pairs",
                "maxReplicas": 2147483647,
                "numOfHosts": 2,
                "rayStartParams": {"num-cpus": "3", "num-gpus": "0"},
                "template": {"spec": {"containers": [{}]}},
            },
            {
                "groupName": "resting",
                "suspend": True,
                "maxReplicas": 5,
                "template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}},
            },
        ],
    }
}
"""As in Kubernetes."""


@pytest.mark.parametrize(
    ("alive", "cpus", "gpus"),
    [
        ([HEAD], 4, 2),
        ([HEAD, CPUS, GPUS], 3, 1),
        ([HEAD, CPUS, CPUS, CPUS, CPUS, CPUS], 0, 1),
        ([HEAD, *[GPUS] * 2], 4, 0),
    ],
    ids=["the head alone", "one of each", "all but one", "all GPUs"],
)
def test_what_may_be_added_is_what_is_declared_less_what_is_alive(
    alive: list[dict[str, float]], cpus: int, gpus: int
) -> None:
    declared, most = node_types.of_config(CONFIG)
    assert node_types.left_over(declared, most, alive) == [GPUS] * gpus + [CPUS] * cpus


def test_a_live_node_is_subtracted_from_one_of_several_types_of_its_size() -> None:
    alike: dict[str, float] = {"CPU": 8.0, "GPU": 1.0}
    alive = [HEAD, *[alike | {"accelerator_type:A100": 1.0, "memory": 3e10}] * 3]
    assert node_types.left_over([(alike, 4), (alike, 4)], 8, alive) == [alike] * 5
    assert node_types.left_over([(alike, 2), (alike, 2)], 4, [HEAD, *[alike] * 4]) == []


def test_a_live_node_is_subtracted_from_the_type_that_declares_its_gpu() -> None:
    alike: dict[str, float] = {"CPU": 8.0, "GPU": 1.0}
    a100, h100 = ({**alike, f"accelerator_type:{kind}": 1.0} for kind in ("A100", "H100"))
    for declared in ([(a100, 2), (h100, 2)], [(h100, 2), (a100, 2)]):
        assert node_types.left_over(declared, 4, [HEAD, a100, a100]) == [h100, h100]
    for declared in ([(alike, 2), (h100, 2)], [(h100, 2), (alike, 2)]):
        assert node_types.left_over(declared, 4, [HEAD, a100, a100]) == [h100, h100]
        assert node_types.left_over(declared, 4, [HEAD, h100, h100]) == [alike, alike]


def test_groups_of_kuberay_count_as_their_pods_ask_for_resources() -> None:
    declared, most = node_types.of_ray_cluster(RAY_CLUSTER)
    gpus, pairs = {"CPU": 8.0, "GPU": 1.0, "accelerator_type:A100": 1.0}, {"CPU": 3.0, "GPU": 0.0}
    assert declared == [(gpus, 2), (pairs, 2 * 2147483647)]
    found = node_types.left_over(declared, most, [])
    assert found[:2] == [gpus] * 2 and len(found) == 10_002, "more of them make no difference"


def test_a_cluster_of_kuberay_without_autoscaling_adds_nothing() -> None:
    spec = RAY_CLUSTER["spec"] | {"enableInTreeAutoscaling": False}
    assert node_types.of_ray_cluster({"spec": spec}) == ([], 0)


def test_the_file_is_that_of_the_monitor_of_this_cluster(tmp_path: Path) -> None:
    for pid, port, file in ((11, 7001, "/etc/one.yaml"), (12, 7002, "/etc/two.yaml")):
        (tmp_path / str(pid)).mkdir()
        command = ["python", "monitor.py", f"--gcs-address=10.0.0.1:{port}", f"--autoscaling-config={file}"]
        (tmp_path / str(pid) / "cmdline").write_text("\0".join([*command, ""]))
    assert node_types.config_file("127.0.0.1:7002", tmp_path) == Path("/etc/two.yaml")
    assert node_types.config_file("127.0.0.1:7003", tmp_path) is None
