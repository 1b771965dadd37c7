"""Code outside the project: a recipe, a model or a source in the user's own file or folder, and its errors.

A recipe refers to such code by the name of its file or folder, the object's name and a digest of the content: exactly
this version is used everywhere. The code is never read from storage: it is sent to a cluster with the project's own.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
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

from storage import error_policy
from storage.error_policy import Permanent
from storage.uri import redact_text

FILES = "PIPELINE_USER_CODE"
"""Environment variable: Python files and folders with a `recipe.py`, separated as in PATH, that recipes and checkpoints
may load code from."""

_PROJECT = ("flows", "tasks", "storage")
"""This project's own packages."""
_MAIN = "recipe.py"
"""File of a folder that is executed; it imports the others with a dot: `from . import layers`."""
_FRAMES = 3
"""Maximum number of lines of the user's code that an error shows, the innermost ones."""
_LONGEST = 1500
"""Maximum characters of the error's own message that are shown."""
_PACKAGE = "pipeline_code_"
_DIGITS = 12
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_REFERENCE = re.compile(rf"(?P<code>{_NAME.pattern}):(?P<name>[A-Za-z_]\w*)@(?P<digest>[0-9a-f]{{{_DIGITS}}})")


@dataclasses.dataclass(frozen=True)
class _Code:
    """A loaded file or folder of the user's, with the content that it had."""

    path: Path
    module: ModuleType
    contents: dict[str, bytes]
    """By path below the folder; a file has one of its own name."""


_loaded: dict[str, _Code] = {}
"""Loaded code by digest, the one loaded last at the end."""


def load(path: Path) -> ModuleType:
    """Import the file or folder at `path`, once per content, and register it, so that `resolve` finds the code in it.

    Raises `ValueError` naming `path` if it does not exist or cannot be imported.
    """
    if not _NAME.fullmatch(path.name):
        raise ValueError(
            f"the name of a recipe's file or folder must have only letters, digits, '_', '-' and '.', got {path.name!r}"
        )
    code = _registered(path)
    if path not in (paths := check_listed()):  # child processes find it too
        os.environ[FILES] = os.pathsep.join(map(str, [*paths, path]))
    return code.module


def _registered(path: Path) -> _Code:
    digest, contents = _read(path)
    _loaded[digest] = code = _loaded.pop(digest, None) or _imported(path, contents, name=_PACKAGE + digest)
    return code


def _read(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return digits of a digest, and the content of the file at `path` or of each file in that folder not hidden."""
    files, folder = [path], path.parent
    if path.suffix != ".py":
        hidden = re.compile(r"(^|/)(\.|__pycache__/)")
        found = sorted(file for file in path.rglob("*") if file.is_file())
        files = [file for file in found if not hidden.search(str(file.relative_to(path)))]
        folder = path
        if path / _MAIN not in files:
            raise ValueError(f"{path} must be a Python file, or a folder with {_MAIN}")
        if any(file.name == "_manifest.json" for file in files):
            raise ValueError(f"{path} contains results of runs; use a --storage outside the recipe's folder")
    try:
        contents = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(content if path.suffix == ".py" else hashlib.sha256(name.encode() + b"\0" + content).digest())
    return digest.hexdigest()[:_DIGITS], contents


def _imported(path: Path, contents: dict[str, bytes], *, name: str) -> _Code:
    is_file = path.suffix == ".py"
    for relative, content in contents.items():  # kept for tracebacks: a file may change later
        if relative.endswith(".py"):
            file = str(path if is_file else path / relative)
            linecache.cache[file] = (len(content), None, content.decode(errors="replace").splitlines(True), file)
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(
        name, path if is_file else path / _MAIN, submodule_search_locations=None if is_file else [str(path)]
    )
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        reason = f"{type(error).__name__}: {error}{line_in(error)}{_import_advice(error)}"
        raise ValueError(f"{path} cannot be imported: {reason}") from None
    return _Code(path, module, contents)


def check_listed() -> list[Path]:
    """Return what `PIPELINE_USER_CODE` lists; make it absolute there, for processes that start in other folders.

    Raises `ValueError` naming the variable if one of them does not exist.
    """
    paths = [Path(name).expanduser().absolute() for name in os.environ.get(FILES, "").split(os.pathsep) if name]
    for path in paths:
        if not (path if path.suffix == ".py" else path / _MAIN).is_file():
            raise ValueError(
                f"{FILES}: there is no file or folder of a recipe {path}; give the path of the Python file, or of the "
                f"folder with {_MAIN}, or unset {FILES}"
            )
    if paths:
        os.environ[FILES] = os.pathsep.join(map(str, paths))
    return paths


def reference(thing: object) -> str:
    """Return the name under which a recipe refers to a top-level object of its own file.

    Args:
        thing: A factory of models or optimizers, or a `Source`.

    Raises:
        ValueError: `thing` is none of the file's objects.
    """
    for digest, code in reversed(_loaded.items()):
        for name, value in vars(code.module).items():
            if value is thing and not name.startswith("__"):
                return f"{code.path.name}:{name}@{digest}"
    raise ValueError(
        f"own() takes a function, class or object defined at the top level of the recipe's file, got {thing!r}"
    )


class UserCodeError(Permanent):
    """The user's code failed; the message ends with the last lines of it that ran."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message, trace)  # pickling needs both
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


@contextlib.contextmanager
def wrap_user_errors() -> Iterator[None]:
    """Turn errors that pass through the user's file, or through a model of it, into `UserCodeError`: a retry fails too.

    Other errors pass unchanged, and so do those of this project, of a full memory and of a lost peer (`DistError`).
    """
    try:
        yield
    except Exception as error:
        lines = _lines(error) or _factory(error)
        package, kind = type(error).__module__.partition(".")[0], type(error).__name__
        is_ours = package in _PROJECT or (package == "torch" and kind.startswith("Dist"))
        if not lines or is_ours or error_policy.is_out_of_memory(error):
            raise
        message = f"{kind}: {redact_text(str(error)).strip()[:_LONGEST]}{_import_advice(error)}"
        trace = redact_text("".join(traceback.format_exception(error)))
        for file, line, function, code in lines[-_FRAMES:]:
            message += f"\n  {file}, line {line}, in {function}\n    {code}".rstrip()
        raise UserCodeError(message, trace) from error


def _import_advice(error: Exception) -> str:
    advice = f"; install it, or put it into a folder with {_MAIN}, name the folder and import it with a dot"
    return advice if isinstance(error, ImportError) else ""


def line_in(error: BaseException) -> str:
    """Return ` (line N: its code)` for the last line of a user's file that ran before `error`, or an empty text."""
    return "".join(f" (line {line}: {code})" for _, line, _, code in _lines(error)[-1:])


def _lines(error: BaseException) -> list[tuple[str, int, str, str]]:
    """Return file, line, function and code of the user's lines that led to `error`, innermost last."""
    return [
        (file, line, frame.f_code.co_name, redact_text(linecache.getline(file, line).strip()))
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(_PACKAGE) and (file := frame.f_code.co_filename)
    ]


def _factory(error: BaseException) -> list[tuple[str, int, str, str]]:
    """Return file, line and name of the user's function that built the model in which `error` rose, and the layer.

    A model of a library's layers alone, such as `nn.Sequential`, runs no line of the user's file.
    """
    objects = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for one in objects:
        if is_reference(model := str(getattr(getattr(one, "spec", None), "model", ""))):
            code = getattr(resolve(model), "__code__", None)
            layer = str([one for one in objects if one is not None][-1]).partition("\n")[0]
            return [(code.co_filename, code.co_firstlineno, code.co_name, layer)] if code else []
    return []


def is_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text) is not None


def resolve(text: str) -> Any:
    """Return the object that the reference `text` names, from code with exactly the referenced content."""
    match = _REFERENCE.fullmatch(text)
    assert match is not None
    return getattr(_code_of(match).module, match["name"])


def _code_of(match: re.Match[str]) -> _Code:
    if (digest := match["digest"]) in _loaded:
        return _loaded[digest]
    if spec := importlib.util.find_spec(_PACKAGE + digest):  # on a cluster
        package = Path(next(iter(spec.submodule_search_locations or ())))
        return _registered(package / match["code"])
    paths = check_listed()
    for path in paths:
        if _read(path)[0] == digest:
            load(path)
            return _loaded[digest]
    searched = f"none of its paths ({', '.join(map(str, paths))}) has that content" if paths else "it is not set"
    raise ValueError(
        f"{match.string} is code outside the project: set {FILES} to the unchanged {match['code']}; {searched}"
    )


@contextlib.contextmanager
def packaged() -> Iterator[list[str]]:
    """Write each file or folder into a package for a cluster; yield the packages, which are deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="pipeline-code-") as folder:
        listed = [(path, *_read(path)) for path in check_listed()]  # loaded or not
        packages = {digest: (path, contents) for path, digest, contents in listed}
        packages |= {digest: (code.path, code.contents) for digest, code in _loaded.items()}
        for digest, (path, contents) in packages.items():
            package = Path(folder, _PACKAGE + digest)
            for name, content in contents.items():
                copy = package / name if path.suffix == ".py" else package / path.name / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
        yield [str(Path(folder, _PACKAGE + digest)) for digest in packages]
