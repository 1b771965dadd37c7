"""Heavy imports come late, and no file is too long; `lint-imports` checks the direction of imports."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for top in ("flows", "tasks", "storage") for path in (ROOT / top).rglob("*.py"))
MAX_LINES = 300
"""Most lines of a file; a longer one is split by what it is about."""


def test_no_file_is_too_long_to_be_read_at_once() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: number for name, number in lines.items() if number > MAX_LINES} == {}


def test_cheap_modules_take_in_nothing_heavy() -> None:
    cheap = "storage.files, storage.tables, tasks.learning.recipes, tasks.learning.sources, tasks.jobs.train"
    cheap += ", tasks.jobs.predict, tasks.jobs.preprocess"
    program = f"import sys, {cheap}; print(*{{'ray', 'torch', 'torchvision', 'prefect', 's3fs'}} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []
