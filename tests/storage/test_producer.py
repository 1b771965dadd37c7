"""A manifest records the code that made a result: a commit, or a commit with uncommitted changes."""

import re
import subprocess
from pathlib import Path

from storage.producer import git_state


def git(checkout: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


def test_checkout_is_its_commit_and_changed_code_is_dirty_with_a_digest(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    (tmp_path / "train.py").write_text("epochs = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "tag", "-am", "a tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == commit
    (tmp_path / "train.py").write_text("epochs = 2\n")
    assert re.fullmatch(f"{commit} dirty [0-9a-f]{{12}}", str(git_state(tmp_path)))
