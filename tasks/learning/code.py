"""Code outside the project: a recipe, a model or a data set in a file of a person's own.

What a recipe takes from there is named by file, name and a digest of the file, so that it is found again, and never
another version of it, wherever the recipe goes. Nothing of it is ever read from storage: it goes to a cluster with the
project's own code, and `PIPELINE_CODE` says where it lies on this machine.
"""

import contextlib
import hashlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

FILES = "PIPELINE_CODE"
"""Environment variable: Python files, separated as in PATH, from which recipes and checkpoints may take models."""

_PACKAGE = "pipeline_code_"
_DIGITS = 12
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.py")
_REFERENCE = re.compile(rf"{_FILE.pattern}:(?P<name>[A-Za-z_]\w*)@(?P<digest>[0-9a-f]{{{_DIGITS}}})")
_contents: dict[str, bytes] = {}
"""Of the files that were loaded, by the name of their module."""


def load(path: Path) -> ModuleType:
    """The module in the file at `path`, imported once for each content; from now on what is in it is found.

    Raises `ValueError` naming the file when there is none or it cannot be imported.
    """
    if not _FILE.fullmatch(path.name):
        raise ValueError(f"a file of code must be called by letters, digits, '_', '-' and '.py', got {path.name!r}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    name = _PACKAGE + hashlib.sha256(content).hexdigest()[:_DIGITS]
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(path)
        try:
            exec(compile(content, path, "exec"), vars(module))
        except Exception as error:
            del sys.modules[name]
            raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}") from None
        _contents[name] = content
    listed = [place for place in os.environ.get(FILES, "").split(os.pathsep) if place]
    if str(path) not in listed:  # whatever this process starts finds it too
        os.environ[FILES] = os.pathsep.join([*listed, str(path)])
    return sys.modules[name]


def reference(thing: Any) -> str:
    """How a recipe names `thing`, which a file of one's own has at its top level; raises `ValueError` for others."""
    for module in [module for name, module in sys.modules.items() if name.startswith(_PACKAGE)]:
        for name, value in vars(module).items():
            if value is thing and not name.startswith("__"):
                return f"{Path(str(module.__file__)).name}:{name}@{module.__name__.removeprefix(_PACKAGE)}"
    raise ValueError(f"own() takes what a recipe's file has at its top level, got {thing!r}")


def is_reference(text: str) -> bool:
    """Whether `text` is what `reference` returns."""
    return _REFERENCE.fullmatch(text) is not None


def resolve(text: str) -> Any:
    """What the reference `text` names, from the very file that it was made from.

    Raises `ValueError` when that file is not here, or not any more as it was.
    """
    found = _REFERENCE.fullmatch(text)
    assert found is not None
    module = sys.modules.get(_PACKAGE + found["digest"]) or _find(found["digest"])
    if module is None:
        raise ValueError(
            f"{text} is code outside the project, and none of the files in {FILES} is that one; name it there, as it "
            "was then"
        )
    return getattr(module, found["name"])


@contextlib.contextmanager
def packaged() -> Iterator[list[str]]:
    """Folders, each a package of one file of code, as long as the block lasts: for a cluster that imports them."""
    with tempfile.TemporaryDirectory(prefix="pipeline-code-") as folder:
        packages = []
        for name, content in {**_named(), **_contents}.items():
            package = Path(folder, name)
            package.mkdir()
            (package / "__init__.py").write_bytes(content)
            packages.append(str(package))
        yield packages


def _named() -> dict[str, bytes]:
    """The files that `PIPELINE_CODE` names, which need not have been loaded here, by the names of their modules."""
    contents = [Path(place).read_bytes() for place in os.environ.get(FILES, "").split(os.pathsep) if place]
    return {_PACKAGE + hashlib.sha256(content).hexdigest()[:_DIGITS]: content for content in contents}


def _find(digest: str) -> ModuleType | None:
    try:
        return importlib.import_module(_PACKAGE + digest)  # on a cluster
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE + digest:  # what it imports itself
            raise
    for place in os.environ.get(FILES, "").split(os.pathsep):
        path = Path(place)
        if place and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS] == digest:
            return load(path)
    return None
