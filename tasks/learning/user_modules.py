"""The user's own modules beside a recipe's file: found by reading its imports, imported from exactly the bytes read."""

import ast
import contextlib
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from storage.uri import URI, check_allowed

Sources = dict[str, tuple[Path, bytes]]
"""Path and content by module name; the recipe's own file has the empty name and comes first."""

PROJECT = ("flows", "tasks", "storage")
"""This project's own packages."""
_PYTHON = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", "/etc")
"""Folders whose files are Python's, a package's or the system's."""
_CODE = (".py", ".pyc", ".so")


def read_sources(file: Path, *, read: Callable[[Path], bytes]) -> Sources:
    """Read `file` and, through their imports, all modules and packages in its folder that it needs."""
    sources: Sources = {"": (file, read(file))}
    waiting = [sources[""][1]]
    while waiting:
        for top in sorted(_imported(waiting.pop())):
            for name, path in _modules(file.parent, top):
                if name not in sources and path != file:
                    sources[name] = path, read(path)
                    waiting.append(sources[name][1])
    return sources


def digest_of(sources: Sources) -> str:
    """Return a digest of all `sources`: that of the file alone if it imports none of the user's modules."""
    digest = hashlib.sha256(sources[""][1])
    for name in sorted(sources)[1:]:
        digest.update(hashlib.sha256(name.encode() + b"\0" + sources[name][1]).digest())
    return digest.hexdigest()


def read_allowed(path: Path) -> bytes:
    """Read a file that may be executed, by its resolved path: a link may change after the check."""
    return resolve_allowed(path).read_bytes()


def resolve_allowed(path: Path) -> Path:
    """Resolve all links in `path`; raises `ValueError` if the result is outside the allowed roots."""
    place = Path(os.path.realpath(path))
    try:
        check_allowed(URI(str(place)))
    except ValueError as error:
        raise ValueError(str(error) if place == path else f"{path} is a link: {error}") from None
    return place


@contextlib.contextmanager
def importable(sources: Sources, *, package: str) -> Iterator[None]:
    """Let code in the block import the user's modules; afterwards these are known as `package.<name>` only.

    So another version of the recipe imports its own modules of the same names.
    """
    names = [*filter(None, sources)]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    finder = _Finder(sources)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in names:
            if module := sys.modules.pop(name, None):
                module.__name__ = f"{package}.{name}"
                sys.modules[module.__name__] = module
        sys.modules.update(others)


class _Finder(MetaPathFinder, SourceLoader):  # type: ignore[misc]
    """Importer of modules from bytes that were read before; neither reads nor writes compiled files."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.sources:
            return None
        file = self.sources[fullname][0]
        locations = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(fullname, file, loader=self, submodule_search_locations=locations)

    def get_filename(self, fullname: str) -> str:
        return str(self.sources[fullname][0])

    def get_data(self, path: str | bytes) -> bytes:
        return next(content for file, content in self.sources.values() if str(file) == path)


@contextlib.contextmanager
def opened_files() -> Iterator[set[Path]]:
    """Yield a set that, after the block, holds the data files that Python's `open` opened in it."""
    names = set[str]()
    files = set[Path]()
    is_on = True

    def note(event: str, arguments: tuple[object, ...]) -> None:  # a hook stays until the process ends
        if is_on and event == "open" and isinstance(arguments[0], str | os.PathLike):
            names.add(os.path.abspath(os.fspath(arguments[0])))

    sys.addaudithook(note)
    try:
        yield files
    finally:
        is_on = False
        paths = (Path(name) for name in names if not name.endswith(_CODE))
        files |= {path for path in paths if not any(map(path.is_relative_to, _PYTHON)) and path.is_file()}


def _imported(content: bytes) -> set[str]:
    """Return the first part of each name that `content` imports; none if it is no Python."""
    names = set[str]()
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError):  # executing it reports them
        return names
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - {*PROJECT}


def _modules(folder: Path, top: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the module `top` in `folder`, of a package all modules."""
    package, module = folder / top, folder / f"{top}.py"
    if any(package.glob("*.py")) and not ((package / "__init__.py").exists() or module.exists() or _is_installed(top)):
        raise ValueError(f"{package} is imported as a package: add an empty {package}/__init__.py")
    for file in sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else [module]:
        if file.is_file():
            *parents, name = file.relative_to(folder).with_suffix("").parts
            yield ".".join(parents if name == "__init__" else [*parents, name]), file


def _is_installed(top: str) -> bool:
    """Return whether Python itself finds a module called `top`, other than a folder without `__init__.py`."""
    spec = importlib.util.find_spec(top)
    return spec is not None and spec.origin is not None
