"""Code outside the project: a recipe, a model or a source in the user's own file, and its errors.

A recipe refers to such code by file name, object name and a digest of the file, of the user's modules that it imports
and of the files that `own(..., files=[...])` names, so that exactly this version is found wherever the recipe is used.
The code is never read from storage: it is sent to a cluster with the project's own code, and `PIPELINE_USER_CODE` lists
its files on this machine.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import json
import linecache
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from storage import error_policy
from storage.error_policy import Permanent
from storage.uri import redact_text
from tasks.learning.user_modules import (
    PROJECT,
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

_FRAMES = 3
"""Maximum number of lines of the user's file that an error shows, the innermost ones."""
_LONGEST = 1500
"""Maximum characters of the error's own message that are shown."""
_PACKAGE = "pipeline_code_"
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
    if path not in (paths := check_listed()):  # child processes find it too
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


def check_listed() -> list[Path]:
    """Return the files in `PIPELINE_USER_CODE`; make them absolute there, for processes that start in other folders.

    Raises `ValueError` naming the variable if one of its files does not exist or is outside the allowed roots.
    """
    paths = [Path(name).expanduser().absolute() for name in os.environ.get(FILES, "").split(os.pathsep) if name]
    for path in paths:
        try:
            resolve_allowed(path)
        except ValueError as error:
            raise ValueError(f"{FILES}: {error}") from None
        if not path.is_file():
            raise ValueError(f"{FILES}: there is no file {path}; give the path of the Python file, or unset {FILES}")
    if paths:
        os.environ[FILES] = os.pathsep.join(map(str, paths))
    return paths


def reference(thing: Any, *, files: Iterable[str] = ()) -> str:
    """Return the name under which a recipe refers to `thing`, a top-level object of the recipe's file.

    Args:
        thing: A model factory or a `Source`.
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
        with resolve_allowed(path).open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        code.declared.add(path)
    if digests and callable(thing) and PRETRAINED not in inspect.signature(thing).parameters:
        raise ValueError(
            f"own(): {thing.__name__} reads files, so it must take the parameter {PRETRAINED!r} and read them only if "
            "that is true: a checkpoint has weights of its own"
        )
    content = json.dumps(sorted(digests.items())).encode()
    return f"-{hashlib.sha256(content).hexdigest()[:_DIGITS]}" if digests else ""


def undeclared(text: str, opened: set[Path]) -> list[Path]:
    """Return the files that the code of reference `text` reads, `opened` among them, although `own` does not name them.

    Another file in their place would be taken for the same model.
    """
    code = _code_of(text)
    declared = {path.resolve() for path in code.declared}
    return sorted(path for path in code.opened | opened if path.resolve() not in declared)


class UserCodeError(Permanent):
    """The user's code failed; the message ends with the last lines of it that ran."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message, trace)  # pickling needs both
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


@contextlib.contextmanager
def wrap_user_errors() -> Iterator[None]:
    """Turn errors that pass through the user's file into `UserCodeError`, since a retry fails again.

    Other errors pass unchanged, and so do those of this project, of a full memory and of a lost peer (`DistError`).
    """
    try:
        yield
    except Exception as error:
        lines = _lines(error)
        package, kind = type(error).__module__.partition(".")[0], type(error).__name__
        is_ours = package in PROJECT or (package == "torch" and kind.startswith("Dist"))
        if not lines or is_ours or error_policy.is_out_of_memory(error):
            raise
        message = f"{kind}: {redact_text(str(error)).strip()[:_LONGEST]}"
        if isinstance(error, ModuleNotFoundError):
            message += "; install it, or if it lies beside the recipe, import it at the top of the recipe's file"
        trace = redact_text("".join(traceback.format_exception(error)))
        for file, line, function, code in lines[-_FRAMES:]:
            message += f"\n  {file}, line {line}, in {function}\n    {code}".rstrip()
        raise UserCodeError(message, trace) from error


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


def is_reference(text: str) -> bool:
    """Return whether `text` has the form of a reference."""
    return _REFERENCE.fullmatch(text) is not None


def resolve(text: str) -> Any:
    """Return the object that the reference `text` names, from code with exactly the referenced content."""
    return getattr(_code_of(text).module, text[text.index(":") + 1 : text.index("@")])


def _code_of(text: str) -> _Code:
    match = _REFERENCE.fullmatch(text)
    assert match is not None
    if (digest := match["digest"]) in _loaded:
        return _loaded[digest]
    if spec := importlib.util.find_spec(_PACKAGE + digest):  # on a cluster
        package = Path(next(iter(spec.submodule_search_locations or ())))
        return _registered(read_sources(package / match["file"], read=Path.read_bytes))
    paths = check_listed()
    for path in paths:
        if digest_of(read_sources(path, read=read_allowed)).startswith(digest):
            load(path)
            return _loaded[digest]
    searched = f"none of its files ({', '.join(map(str, paths))}) has" if paths else "it names no file with"
    raise ValueError(
        f"{text} is code outside the project: set {FILES} to the unchanged {match['file']}, with its modules "
        f"beside it; {searched} that content"
    )


@contextlib.contextmanager
def packaged() -> Iterator[list[str]]:
    """Write each file with what it needs as a package for a cluster; yield the folders, which are deleted afterwards.

    Of the files that `own` names, those below the folder of the recipe's file travel too.
    """
    with tempfile.TemporaryDirectory(prefix="pipeline-code-") as folder:
        listed = [read_sources(path, read=read_allowed) for path in check_listed()]  # loaded or not
        packages = {digest_of(sources)[:_DIGITS]: sources for sources in listed}
        packages |= {digest: code.sources for digest, code in _loaded.items()}
        for digest, sources in packages.items():
            package, origin = Path(folder, _PACKAGE + digest), sources[""][0]
            contents = {origin.with_name("__init__.py"): b""} | dict(sources.values())
            declared = _loaded[digest].declared if digest in _loaded else set()
            for path in [*contents, *declared]:
                if path in contents or (path.is_relative_to(origin.parent) and path.is_file()):
                    copy = package / path.relative_to(origin.parent)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(contents[path] if path in contents else path.read_bytes())
        yield [str(Path(folder, _PACKAGE + digest)) for digest in packages]
