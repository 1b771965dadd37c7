"""A manifest records the code that made a result: a commit, or a commit with uncommitted changes."""

import re
import subprocess
from pathlib import Path

import pytest

from storage.producer import git_state


def git(checkout: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "train.py").write_text("epochs = 1\n")
    (tmp_path / "README.md").write_text("words\n")
    (tmp_path / ".gitignore").write_text("data/\n*.pyc\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_clean_checkout_is_its_commit(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert git_state(checkout) == commit
    (checkout / "README.md").write_text("other words\n")
    (checkout / "result.json").write_text("{}")
    (checkout / "tasks" / "train.pyc").write_bytes(b"cache")
    assert git_state(checkout) == commit, "what does not decide results does not count"


@pytest.mark.parametrize("file", ["tasks/train.py", "tasks/new model.py"])
def test_changed_or_new_code_is_dirty_with_a_digest(checkout: Path, file: str) -> None:
    (checkout / file).write_text("epochs = 2\n")
    assert re.fullmatch(git(checkout, "rev-parse", "HEAD") + " dirty [0-9a-f]{12}", str(git_state(checkout)))


def test_without_git_nothing_is_said(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
