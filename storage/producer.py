"""Producer of a result: the user, the versions of this package and its libraries, and the git state of the code."""

import contextlib
import functools
import getpass
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
from pathlib import Path

_CHECKOUT = Path(__file__).parent.parent
_PACKAGES = ("data-to-model", "ray", "torch", "torchvision", "prefect", "pyarrow")
_DIGEST_LENGTH = 12


@functools.cache
def producer() -> dict[str, str | None]:
    """Return the version of each package (none if not installed); `code` and `git` say which code was imported."""
    versions: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions | {"code": _imported_code(), "git": git_state(_CHECKOUT)}


def _imported_code() -> str:
    """Return a digest of the Python files of `storage` and `tasks`, where this process imports them from."""
    digest = hashlib.sha256()
    for package in ("storage", "tasks"):  # those that jobs import
        spec = importlib.util.find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            for file in sorted(folder.rglob("*.py")):
                digest.update(f"{package}/{file.relative_to(folder)}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:_DIGEST_LENGTH]


def user() -> str:
    """Return the name of the user that this process runs as; the user id in a container without user names."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def git_state(checkout: Path) -> str | None:
    """Return the commit of `checkout`, followed by ` dirty ` and the digest of the code if its files were changed.

    Return none without git.
    """
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    if not (checkout / ".git").exists():
        return None
    try:
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().replace("-dirty", f" dirty {_imported_code()}")
