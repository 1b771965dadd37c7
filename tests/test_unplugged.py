"""Whole runs without a network: the bundled sample needs none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    (page,) = tmp_path.glob("data/reports/mnist-sample-resnet18-*/index.html")
    assert lines[-2].endswith(str(page)) and any(line.startswith("decision       promoted: ") for line in lines)


def test_recipe_that_downloads_is_refused_with_the_next_step(tmp_path: Path) -> None:
    done = run(tmp_path, "--recipe", "mnist-resnet18")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: no mirror of mnist can be reached" in done.stderr and "--mirror URL_OR_DIR" in done.stderr
