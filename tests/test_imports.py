"""What starts often imports nothing heavy; `lint-imports` checks the direction of imports."""

import subprocess
import sys

import pytest

from tests.runs import CHECKOUT

_CHEAP = "storage.files, storage.tables, tasks.learning.recipes, tasks.learning.sources, tasks.jobs.train"


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("data_to_model", {"ray", "torch", "prefect", "s3fs", "rich.console", "pyarrow"}),
        (f"{_CHEAP}, tasks.jobs.predict, tasks.jobs.preprocess", {"ray", "torch", "torchvision", "prefect", "s3fs"}),
    ],
)
@pytest.mark.usefixtures("integration")
def test_modules_that_start_often_import_nothing_heavy(modules: str, heavy: set[str]) -> None:
    program = f"import sys, {modules}; print(*{heavy} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []
