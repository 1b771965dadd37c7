"""Schedules that start runs by themselves, on a server of any database."""

import re
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from tests.image_folder import encoded
from tests.prefect_system import Server
from tests.runs import CHECKOUT, await_that

_SMALL = {"epochs": 1, "model": "small-cnn", "image_size": 16, "max_quarantined": 0.5}
"""A training of seconds."""


def add_scheduled(checkout: Path, photos: Path) -> None:
    """Put the deployment of docs/images.md into deployments.yaml twice, each minute by cron and by interval."""
    (block,) = re.findall(r"```yaml\n(deployments:\n.*?)```", (CHECKOUT / "docs" / "images.md").read_text(), re.DOTALL)
    (by_cron,) = yaml.safe_load(block)["deployments"]
    by_cron["name"] = "by-cron"
    by_cron["parameters"] = {**by_cron["parameters"], "data": str(photos), "settings": _SMALL, "workers": 0}
    by_cron["parameters"]["recipe"] = "images-resnet18"  # the default needs weights from the network
    by_cron["schedules"][0]["cron"] = "* * * * *"
    by_interval = deepcopy(by_cron)
    by_interval |= {"name": "by-interval", "schedules": [{"slug": "often", "interval": 60}]}
    (checkout / "deployments.yaml").write_text(yaml.safe_dump({"deployments": [by_cron, by_interval]}))


def check_both_ran(server: Server, photos: Path) -> None:
    """Wait until each has started a run by itself; add a photo, which one of them trains on; then pause them."""
    runs = await_that(lambda: _ended(server), limit_s=300, interval_s=1)
    states = {name: {run["state_name"] for run in of_name} for name, of_name in runs.items()}
    logs = {run["id"]: server.log(run["id"])[-5:] for of_name in runs.values() for run in of_name}
    assert set().union(*states.values()) <= {"Promoted", "Rejected", "Unchanged", "NothingNew"}, logs
    assert _completed(server), "neither trained a model"
    added = datetime.now(UTC).isoformat()
    (photos / "train" / "pears" / "late.png").write_bytes(encoded(5000, 0))
    await_that(lambda: any(run["start_time"] > added for run in _completed(server)), limit_s=300)
    artifacts = [str(server.artifacts(run["id"])) for run in _completed(server)]
    assert all(re.search(r"'photos-[0-9a-f]{8}-summary': .*images-small-cnn", shown) for shown in artifacts)
    for name in runs:
        deployment = server.deployment(f"images/{name}")
        for schedule in deployment["schedules"]:
            path = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
            server.api("PATCH", path, {"active": False})


def _ended(server: Server) -> dict[str, list[dict[str, Any]]]:
    """The ended runs of the two deployments, once both have one; nobody but a schedule started them."""
    ended = {}
    for name in ("by-cron", "by-interval"):
        wanted = {"deployments": {"name": {"any_": [name]}}, "sort": "START_TIME_ASC"}
        runs = server.api("POST", "/flow_runs/filter", wanted)
        assert all(run["created_by"]["type"] == "SCHEDULE" for run in runs)
        ended[name] = [run for run in runs if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]
    return ended if all(ended.values()) else {}


def _completed(server: Server) -> list[dict[str, Any]]:
    """The runs that trained."""
    return [run for runs in _ended(server).values() for run in runs if run["state_name"] in ("Promoted", "Rejected")]
