"""Code outside the project: a recipe, a model or a data set in the user's own file.

A recipe refers to such code by file name, object name and a digest of the file, of the user's modules that it imports
and of the files that `own(..., files=[...])` names, so that exactly this version is found wherever the recipe is used.
The code is never read from storage: it is sent to a cluster with the project's own code, and `PIPELINE_USER_CODE` lists
its files on this machine.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import json
import linecache
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from storage.uri import redact_text
from tasks.learning.user_modules import (
    Sources,
    digest_of,
    importable,
    opened_files,
    read_allowed,
    read_sources,
    resolve_allowed,
)

FILES = "PIPELINE_USER_CODE"
"""Environment variable: Python files, separated as in PATH, from which recipes and checkpoints may load code."""
PRETRAINED = "pretrained"
"""Parameter of a model factory: whether to read weights from files; false if a checkpoint's weights follow."""

_PACKAGE = "pipeline_code_"
_ORIGIN = "origin.txt"  # file in a package sent to a cluster, with the path of the recipe's file on this machine
_DIGITS = 12
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.py")
_REFERENCE = re.compile(
    rf"(?P<file>{_FILE.pattern}):(?P<name>[A-Za-z_]\w*)@(?P<digest>[0-9a-f]{{{_DIGITS}}})(-[0-9a-f]{{{_DIGITS}}})?"
)


@dataclasses.dataclass(frozen=True)
class _Code:
    """A loaded file of the user's, with everything it needs."""

    module: ModuleType
    sources: Sources
    opened: set[Path]
    """Data files beside it that it opened when it was imported."""
    declared: set[Path] = dataclasses.field(default_factory=set)
    """Files named by `own(..., files=[...])`."""

    @property
    def path(self) -> Path:
        return self.sources[""][0]


_loaded: dict[str, _Code] = {}
"""Loaded code by digest, the one loaded last at the end."""


def load(path: Path) -> ModuleType:
    """Import the file at `path`, once per content, and register it, so that `resolve` finds the code in it.

    Raises `ValueError` naming the file if it does not exist, is outside the allowed roots or cannot be imported.
    """
    if not _FILE.fullmatch(path.name):
        raise ValueError(
            f"a code file's name must consist of letters, digits, '_' and '-', and end in '.py', got {path.name!r}"
        )
    try:
        sources = read_sources(path, read=read_allowed)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    code = _registered(sources)
    if path not in (paths := _listed()):  # child processes find it too
        os.environ[FILES] = os.pathsep.join(map(str, [*paths, path]))
    return code.module


def _registered(sources: Sources) -> _Code:
    digest = digest_of(sources)[:_DIGITS]
    _loaded[digest] = code = _loaded.pop(digest, None) or _executed(sources, name=_PACKAGE + digest)
    return code


def _executed(sources: Sources, *, name: str) -> _Code:
    path, content = sources[""]
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    text = content.decode(errors="replace")  # kept for tracebacks: the file may change later
    linecache.cache[str(path)] = (len(content), None, text.splitlines(keepends=True), str(path))
    try:
        with opened_files() as opened, importable(sources, package=name):
            exec(compile(content, path, "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{path} cannot be imported: {type(error).__name__}: {error}{line_in(error)}") from None
    return _Code(module, sources, {file for file in opened if file.is_relative_to(path.parent)})


def check_listed() -> None:
    """Make the paths in `PIPELINE_USER_CODE` absolute, for processes that start in other folders.

    Raises `ValueError` naming the variable if one of its files does not exist or is outside the allowed roots.
    """
    paths = [path.expanduser().absolute() for path in _listed()]
    for path in paths:
        try:
            resolve_allowed(path)
        except ValueError as error:
            raise ValueError(f"{FILES}: {error}") from None
        if not path.is_file():
            raise ValueError(f"{FILES}: there is no file {path}; give the path of the Python file, or unset {FILES}")
    if paths:
        os.environ[FILES] = os.pathsep.join(map(str, paths))


def reference(thing: Any, *, files: Iterable[str] = ()) -> str:
    """Return the name under which a recipe refers to `thing`, a top-level object of the recipe's file.

    Args:
        thing: A model factory or a `DataSet`.
        files: Files that `thing` reads, such as pretrained weights: absolute, or relative to the recipe's file. Their
            content becomes part of the name. The factory must then take `pretrained`, and read them only if it is true.

    Raises:
        ValueError: `thing` is none of the file's objects, or a file does not exist or is outside the allowed roots.
    """
    for digest, code in reversed(_loaded.items()):
        for name, value in vars(code.module).items():
            if value is thing and not name.startswith("__"):
                return f"{code.path.name}:{name}@{digest}{_declared(code, thing, files)}"
    raise ValueError(
        f"own() takes a function, class or object defined at the top level of the recipe's file, got {thing!r}"
    )


def _declared(code: _Code, thing: Any, files: Iterable[str]) -> str:
    """Return the part of a reference that stands for the content of `files`."""
    if isinstance(files, str):
        raise ValueError(f"own(): files must be a list of paths, got {files!r}; write files=[{files!r}]")
    digests = {}
    for name in files:
        path = Path(os.path.abspath(code.path.parent / Path(name).expanduser()))
        if not path.is_file():
            raise ValueError(
                f"own(): files: there is no file {path}; give a path relative to {code.path}, or an absolute one"
            )
        changed = path.stat()
        digests[name] = _sha256(resolve_allowed(path), changed.st_size, changed.st_mtime_ns)
        code.declared.add(path)
    if digests and callable(thing) and PRETRAINED not in inspect.signature(thing).parameters:
        raise ValueError(
            f"own(): {thing.__name__} reads files, so it must take the parameter {PRETRAINED!r} and read them only if "
            "that is true: a checkpoint has weights of its own"
        )
    content = json.dumps(sorted(digests.items())).encode()
    return f"-{hashlib.sha256(content).hexdigest()[:_DIGITS]}" if digests else ""


@functools.cache
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    """Return the digest of a file; size and time tell versions of it apart."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def undeclared(text: str, opened: set[Path]) -> list[Path]:
    """Return the files that the code of reference `text` reads, `opened` among them, although `own` does not name them.

    Another file in their place would be taken for the same model.
    """
    code = _code_of(text)
    declared = {path.resolve() for path in code.declared}
    return sorted(path for path in code.opened | opened if path.resolve() not in declared)


def is_theirs(names: dict[str, Any]) -> bool:
    """Return whether `names` are the globals of a user's file."""
    return str(names.get("__name__")).startswith(_PACKAGE)


def place_of(names: dict[str, Any]) -> str:
    """Return the path of the file with the globals `names`, as on the machine where the run began."""
    file = Path(str(names["__file__"]))
    package = next((folder for folder in file.parents if folder.name.startswith(_PACKAGE)), None)
    return str(_origin(package).parent / file.relative_to(package)) if package else str(file)


def _origin(package: Path) -> Path:
    return Path((package / _ORIGIN).read_text())


def line_in(error: BaseException) -> str:
    """Return ` (line N: its code)` for the last line of a user's file that ran before `error`, or an empty text."""
    text = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_theirs(frame.f_globals):
            text = f" (line {line}: {redact_text(linecache.getline(frame.f_code.co_filename, line).strip())})"
    return text


def is_reference(text: str) -> bool:
    """Return whether `text` has the form of a reference."""
    return _REFERENCE.fullmatch(text) is not None


def resolve(text: str) -> Any:
    """Return the object that the reference `text` names, from code with exactly the referenced content."""
    match = _REFERENCE.fullmatch(text)
    assert match is not None
    return getattr(_code_of(text).module, match["name"])


def _code_of(text: str) -> _Code:
    match = _REFERENCE.fullmatch(text)
    assert match is not None
    code = _loaded.get(match["digest"]) or _find(match["digest"])
    if code is None:
        listed = f"none of its files ({', '.join(map(str, _listed()))}) has" if _listed() else "it names no file with"
        raise ValueError(
            f"{text} is code outside the project: set {FILES} to the unchanged {match['file']}, with its modules "
            f"beside it; {listed} that content"
        )
    return code


@contextlib.contextmanager
def packaged() -> Iterator[list[str]]:
    """Write each file with what it needs as a package for a cluster; yield the folders, which are deleted afterwards.

    Of the files that `own` names, those below the folder of the recipe's file travel too.
    """
    with tempfile.TemporaryDirectory(prefix="pipeline-code-") as folder:
        check_listed()
        listed = [read_sources(path, read=read_allowed) for path in _listed()]  # loaded or not
        packages = {digest_of(sources)[:_DIGITS]: sources for sources in listed}
        packages |= {digest: code.sources for digest, code in _loaded.items()}
        for digest, sources in packages.items():
            package, origin = Path(folder, _PACKAGE + digest), sources[""][0]
            for path, content in [(origin.with_name("__init__.py"), b""), *sources.values()]:
                place = package / path.relative_to(origin.parent)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            for path in _loaded[digest].declared if digest in _loaded else ():
                if path.is_relative_to(origin.parent) and path.is_file():  # a checkpoint does without
                    place = package / path.relative_to(origin.parent)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, place)
            (package / _ORIGIN).write_text(str(origin))
        yield [str(Path(folder, _PACKAGE + digest)) for digest in packages]


def _find(digest: str) -> _Code | None:
    if spec := importlib.util.find_spec(_PACKAGE + digest):  # on a cluster
        package = Path(next(iter(spec.submodule_search_locations or ())))
        return _registered(read_sources(package / _origin(package).name, read=Path.read_bytes))
    check_listed()
    for path in _listed():
        if digest_of(read_sources(path, read=read_allowed)).startswith(digest):
            load(path)
            return _loaded[digest]
    return None


def _listed() -> list[Path]:
    return [Path(place) for place in os.environ.get(FILES, "").split(os.pathsep) if place]
