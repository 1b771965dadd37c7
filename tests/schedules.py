"""Schedules that start runs by themselves, on a server of any database."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from tests.prefect_system import Server
from tests.runs import CHECKOUT, await_that

_SMALL = {"epochs": 1, "model": "small-cnn", "image_size": 16, "max_quarantined": 0.5}
"""A training of seconds."""


def add_scheduled(checkout: Path, photos: Path) -> None:
    """Add the deployment of docs/images.md to prefect.yaml twice, each minute by cron and by interval."""
    (block,) = re.findall(r"```yaml\n(  - name: .*?)```", (CHECKOUT / "docs" / "images.md").read_text(), re.DOTALL)
    content = yaml.safe_load((checkout / "prefect.yaml").read_text() + block)
    by_cron = content["deployments"].pop()
    by_cron["name"] = "by-cron"
    by_cron["parameters"] = {**by_cron["parameters"], "data": str(photos), "settings": _SMALL, "workers": 0}
    by_cron["parameters"]["recipe"] = "images-resnet18"  # the default needs weights from the network
    by_cron["schedules"][0]["cron"] = "* * * * *"
    by_interval = deepcopy(by_cron)
    by_interval |= {"name": "by-interval", "schedules": [{"slug": "often", "interval": 60}]}
    content["deployments"] += [by_cron, by_interval]
    (checkout / "prefect.yaml").write_text(yaml.safe_dump(content))


def uncomment_watch(checkout: Path, data: str) -> None:
    """Uncomment the block of prefect.yaml that retrains when files are added, with `data` for its path.

    Then make the training one of seconds, and look each minute.
    """
    path = checkout / "prefect.yaml"
    head, _, block = path.read_text().partition("  # To retrain when files are added")
    block = re.sub(r"^  # ?", "  ", block.partition("\n")[2], flags=re.MULTILINE)
    content = yaml.safe_load((head + block).replace("/path/to/photos", data))
    named = {(one["entrypoint"], one["name"]): one for one in content["deployments"]}
    train, watch = named["flows/pipeline.py:images", "train"], named["flows/new_files.py:images", "watch"]
    assert train["parameters"] == {"data": data} and train["schedules"] and watch["schedules"]
    train["parameters"] |= {"recipe": "images-resnet18", "settings": _SMALL, "workers": 0}
    watch["parameters"] = {"settle": "2s"}
    watch["schedules"][0]["interval"] = 60
    watch["triggers"][0]["within"] = 10
    path.write_text(yaml.safe_dump(content))


def check_both_ran(server: Server) -> None:
    """Wait until each has started a run by itself that ended well, then pause them."""
    runs = await_that(lambda: _ended(server), limit_s=300, interval_s=1)
    states = {(name, run["state_name"]) for name, run in runs.items()}
    ended_well = {(name, state) for name in runs for state in ("Completed", "NothingNew")}
    assert states <= ended_well, {name: server.log(run["id"])[-5:] for name, run in runs.items()}
    completed = [run for run in runs.values() if run["state_name"] == "Completed"]
    assert completed, "neither trained a model"
    artifacts = [str(server.artifacts(run["id"])) for run in completed]
    assert all(re.search(r"'photos-[0-9a-f]{8}-report': .*images-resnet18", shown) for shown in artifacts)
    for name in runs:
        deployment = server.deployment(f"images/{name}")
        for schedule in deployment["schedules"]:
            path = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
            server.api("PATCH", path, {"active": False})


def _ended(server: Server) -> dict[str, dict[str, Any]]:
    """The first ended run of each of the two deployments, once both have one; nobody but a schedule started it."""
    ended = {}
    for name in ("by-cron", "by-interval"):
        wanted = {"deployments": {"name": {"any_": [name]}}, "sort": "START_TIME_ASC"}
        runs = server.api("POST", "/flow_runs/filter", wanted)
        assert all(run["created_by"]["type"] == "SCHEDULE" for run in runs)
        over = [run for run in runs if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]
        if over:
            ended[name] = over[0]
    return ended if len(ended) == 2 else {}
