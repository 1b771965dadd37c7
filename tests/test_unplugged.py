"""Whole runs without a network: the bundled sample and the default for user images need none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage import manifest
from storage.uri import CheckpointURI
from tests.image_folder import write_folder
from tests.runs import CHECKOUT, prefect_home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
UNPLUGGED = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
"""Runs a command where only loopback exists."""


@pytest.fixture(scope="module", autouse=True)
def _may_unplug() -> None:
    try:
        subprocess.run([*UNPLUGGED, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a namespace without a network needs root, unshare and ip: {error}")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the pipeline in `folder`, where it makes `data`."""
    home = folder / "prefect"
    prefect_home(home)
    env = {name: value for name, value in os.environ.items() if name not in ("PREFECT_API_URL", "RAY_ADDRESS")}
    env |= {"PREFECT_HOME": str(home), "HOME": str(folder)}
    command = [*UNPLUGGED, sys.executable, str(CHECKOUT / "flows" / "pipeline.py"), *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900)


def test_first_command_trains_on_the_sample_and_names_the_next_one(tmp_path: Path) -> None:
    done = run(tmp_path, "--set", "model=small-cnn", "--set", "epochs=1", "--set", "minimum=0")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "next           all of MNIST: python flows/pipeline.py --recipe mnist-resnet18"
    (page,) = tmp_path.glob("data/reports/mnist-sample-small-cnn-*/index.html")
    assert lines[-2].endswith(str(page)) and any(line.startswith("decision       promoted: ") for line in lines)


def test_default_for_user_images_starts_from_the_weights_of_a_package(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    small = ["epochs=1", "image_size=32", "max_shift=2", "batch_size=8", "max_quarantined=0.5"]
    done = run(tmp_path, "--data", str(photos), "--json", *(word for one in small for word in ("--set", one)))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [stage["name"] for stage in summary["stages"]][:2] == ["download weights", "ingest"]
    checkpoint = manifest.load(CheckpointURI(summary["uris"]["checkpoint"]))
    assert checkpoint.statistics["model"]["model"] == "timm/tf_efficientnet_lite0" and "weights" in checkpoint.parents


def test_recipe_that_downloads_is_refused_with_the_next_step(tmp_path: Path) -> None:
    done = run(tmp_path, "--recipe", "mnist-resnet18")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: no mirror of mnist can be reached" in done.stderr and "--mirror URL_OR_DIR" in done.stderr
