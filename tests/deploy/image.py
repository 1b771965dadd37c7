"""deploy/Dockerfile as instructions, and the folder that its last stage copies, made without Docker."""

import re
import shutil
from pathlib import Path

from tests.runs import CHECKOUT

DOCKERFILE = CHECKOUT / "deploy" / "Dockerfile"
_SETTING = re.compile(r"([A-Z_]+)=(\S+)")


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage, from its FROM on; what comes before the first stands in that."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.partition(" ") for line in text.splitlines() if line.strip()]
    found: list[list[tuple[str, str]]] = [[]]
    for instruction, _, words in lines:
        if instruction == "FROM" and any(name == "FROM" for name, _ in found[-1]):
            found.append([])
        found[-1].append((instruction, " ".join(words.split())))
    return found


def copied(stage: list[tuple[str, str]]) -> list[tuple[list[str], str]]:
    """Sources and destination of each COPY from the checkout."""
    words = [words.split() for name, words in stage if name == "COPY" and not words.startswith("--from=")]
    return [(sources, destination) for *sources, destination in words]


def variables() -> dict[str, str]:
    """The variables that the image sets."""
    return dict(pair for name, words in stages()[-1] if name == "ENV" for pair in _SETTING.findall(words))


def assemble(folder: Path) -> Path:
    """Copy to `folder` what the last stage copies from the checkout."""
    folder.mkdir(parents=True)
    for sources, destination in copied(stages()[-1]):
        for source in sources:
            origin = CHECKOUT / source
            target = folder / destination / source if destination.endswith("/") else folder / destination
            if origin.is_dir():
                shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(origin, target)
    return folder
