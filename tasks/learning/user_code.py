"""Code outside the project: a recipe, a model or a data set in the user's own file.

A recipe refers to such code by file name, object name and a digest of the file, so that exactly this version is found
wherever the recipe is used. The code is never read from storage: it is sent to a cluster with the project's own code,
and `PIPELINE_CODE` lists its files on this machine.
"""

import contextlib
import hashlib
import importlib
import linecache
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from storage.uri import URI, check_allowed, redact_text

FILES = "PIPELINE_CODE"
"""Environment variable: Python files, separated as in PATH, from which recipes and checkpoints may load code."""

_PACKAGE = "pipeline_code_"
_ORIGIN = "origin.txt"  # file in a package sent to a cluster, with the path of the code on this machine
_DIGITS = 12
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.py")
_REFERENCE = re.compile(rf"{_FILE.pattern}:(?P<name>[A-Za-z_]\w*)@(?P<digest>[0-9a-f]{{{_DIGITS}}})")
_contents: dict[str, tuple[str, bytes]] = {}  # path and content of the loaded files, by module name


def load(path: Path) -> ModuleType:
    """Import the file at `path`, once per content, and register it, so that `resolve` finds the code in it.

    Raises `ValueError` naming the file if it does not exist, is outside the allowed roots or cannot be imported.
    """
    if not _FILE.fullmatch(path.name):
        raise ValueError(
            f"a code file's name must consist of letters, digits, '_' and '-', and end in '.py', got {path.name!r}"
        )
    try:
        content = _read(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    name = _module_name(content)
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(path)
        text = content.decode(errors="replace")  # kept for tracebacks: the file may change later
        linecache.cache[str(path)] = (len(content), None, text.splitlines(keepends=True), str(path))
        try:
            exec(compile(content, path, "exec"), vars(module))
        except Exception as error:
            del sys.modules[name]
            raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}{line_in(error)}") from None
        _contents[name] = (str(path), content)
    if path not in (listed := _listed()):  # child processes find it too
        os.environ[FILES] = os.pathsep.join(map(str, [*listed, path]))
    return sys.modules[name]


def check_listed() -> None:
    """Raise `ValueError` naming `PIPELINE_CODE` if one of its files is outside the allowed roots."""
    for path in _listed():
        try:
            _check_allowed(path)
        except ValueError as error:
            raise ValueError(f"{FILES}: {error}") from None


def reference(thing: Any) -> str:
    """Return the reference to `thing`, a top-level object of a loaded user file; raises `ValueError` for others."""
    for module in [module for name, module in sys.modules.items() if name.startswith(_PACKAGE)]:
        for name, value in vars(module).items():
            if value is thing and not name.startswith("__"):
                return f"{Path(str(module.__file__)).name}:{name}@{module.__name__.removeprefix(_PACKAGE)}"
    raise ValueError(
        f"own() takes a function, class or object defined at the top level of the recipe's file, got {thing!r}"
    )


def is_theirs(names: dict[str, Any]) -> bool:
    """Return whether `names` are the globals of a user's file."""
    return str(names.get("__name__")).startswith(_PACKAGE)


def place_of(names: dict[str, Any]) -> str:
    """Return the path of the file with the globals `names`, as on the machine where the run began."""
    file = Path(str(names["__file__"]))
    origin = file.with_name(_ORIGIN)
    return origin.read_text() if file.name == "__init__.py" and origin.exists() else str(file)


def line_in(error: BaseException) -> str:
    """Return ` (line N: its code)` for the last line of a user's file that ran before `error`, or an empty text."""
    told = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_theirs(frame.f_globals):
            told = f" (line {line}: {redact_text(linecache.getline(frame.f_code.co_filename, line).strip())})"
    return told


def is_reference(text: str) -> bool:
    """Return whether `text` has the form of a reference."""
    return _REFERENCE.fullmatch(text) is not None


def resolve(text: str) -> Any:
    """Return the object that the reference `text` names, from a file with exactly the referenced content."""
    found = _REFERENCE.fullmatch(text)
    assert found is not None
    module = sys.modules.get(_PACKAGE + found["digest"]) or _find(found["digest"])
    if module is None:
        raise ValueError(
            f"{text} is code outside the project, and no file in {FILES} matches it; list the unchanged file there"
        )
    return getattr(module, found["name"])


@contextlib.contextmanager
def packaged() -> Iterator[list[str]]:
    """Write each code file as a package for a cluster; yield the folders, which are deleted after the block."""
    with tempfile.TemporaryDirectory(prefix="pipeline-code-") as folder:
        check_listed()
        listed = [(str(path), _read(path)) for path in _listed()]  # loaded or not
        packages = []
        for name, (path, content) in ({_module_name(file[1]): file for file in listed} | _contents).items():
            package = Path(folder, name)
            package.mkdir()
            (package / "__init__.py").write_bytes(content)
            (package / _ORIGIN).write_text(path)
            packages.append(str(package))
        yield packages


def _module_name(content: bytes) -> str:
    return _PACKAGE + hashlib.sha256(content).hexdigest()[:_DIGITS]


def _find(digest: str) -> ModuleType | None:
    try:
        return importlib.import_module(_PACKAGE + digest)  # on a cluster
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE + digest:  # a failed import inside that file
            raise
    check_listed()
    for path in _listed():
        if path.is_file() and _module_name(_read(path)) == _PACKAGE + digest:
            return load(path)
    return None


def _listed() -> list[Path]:
    return [Path(place) for place in os.environ.get(FILES, "").split(os.pathsep) if place]


def _read(path: Path) -> bytes:
    """Read a file that may be executed, by its resolved path: a link may change after the check."""
    return _check_allowed(path).read_bytes()


def _check_allowed(path: Path) -> Path:
    """Resolve all links in `path`; raises `ValueError` if the result is outside the allowed roots."""
    place = Path(os.path.realpath(path))
    try:
        check_allowed(URI(str(place)))
    except ValueError as error:
        raise ValueError(str(error) if place == path else f"{path} is a link: {error}") from None
    return place
