"""Python environments that hold a few packages and what these need, linked from this one: nothing is downloaded."""

import sys
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def make(folder: Path, *packages: str) -> Path:
    """Make an environment with only `packages` and what they require; return its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for package in _with_requirements(packages):
        for top, place in _top_level(package).items():
            if not (site / top).exists():
                (site / top).symlink_to(place)
    return folder / "bin" / "python"


def _with_requirements(packages: tuple[str, ...]) -> set[str]:
    found, pending = set[str](), list(packages)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            needs = [Requirement(line) for line in metadata.requires(name) or []]
            pending += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
    return found


def _top_level(package: str) -> dict[str, Path]:
    """Return the files and folders of `package` that lie directly in site-packages."""
    distribution = metadata.distribution(package)
    tops = {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}
    return {top: Path(str(distribution.locate_file(top))).resolve() for top in tops}
