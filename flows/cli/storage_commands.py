"""Commands on storage that only look, and what all of them share."""

import contextlib
import difflib
import os
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from storage import access, exits, files, manifest, terminal
from storage.admin import catalog, listing, runs
from storage.admin import verify as checks
from storage.admin.catalog import Folder
from storage.exits import Storage
from storage.kinds import KINDS
from storage.terminal import count
from storage.uri import Root, parse_root

Result = Annotated[str, typer.Argument(metavar="RESULT", help=exits.NAMED)]

_RUNS = "runs"

app = typer.Typer()


def command(function: Callable[..., int]) -> Callable[..., int]:
    """Register a command; a `ValueError` in it is an invalid request."""
    return exits.command(app)(exits.refused_if_invalid()(function))


def _parse_kind(value: str) -> str:
    if value not in (*KINDS, _RUNS):
        like = difflib.get_close_matches(value, (*KINDS, _RUNS), n=1)
        hint = f"; did you mean {like[0]}?" if like else ""
        raise typer.BadParameter(f"must be one of {', '.join(KINDS)}, or {_RUNS}, got {value!r}{hint}")
    return value


@command
def ls(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND", parser=_parse_kind, help=f"only these: {', '.join(KINDS)}; or {_RUNS}"),
    ] = None,
    *,
    storage: Storage = "./data",
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="also write the runs to this page, with links to the reports")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON on stdout and logs on stderr (default: a table)")
    ] = False,
) -> int:
    """List results by time, with metrics, sizes and marks; or runs.

    The newest result is last. Times are local; with --json they include the time zone. Accuracy,
    balanced accuracy and macro F1 are for the test rows of a model's own data.

    marks:
      champion    current champion of its registered model
      incomplete  no manifest: a run is making it, or stopped early; the same command resumes
      unreadable  its manifest is damaged, or of a newer version; verify says which

    `ls runs` prints a row for each run: the fields that differ from the usual recipe, metrics,
    whether the model is or was champion, and seconds.

    Examples:
      data-to-model ls checkpoint predictions
      data-to-model ls runs --html runs.html
    """
    is_runs = kinds == [_RUNS]
    if kinds and _RUNS in kinds and not is_runs:
        raise ValueError(f"kind: {_RUNS} cannot be listed with {', '.join({*kinds} - {_RUNS})}; list it alone")
    if html and not is_runs:
        raise ValueError(f"--html is only for runs; use: ls {_RUNS}")
    root = existing_root(storage)
    if is_runs:
        documents, damaged = runs.of(root)
    else:
        current_champions, damaged = listing.current_champions(root)
        names = [decision.champion for decision in current_champions.values() if decision and decision.champion]
        documents = listing.of(root, kinds or KINDS, names)
    if html:
        from tasks import report_page  # its imports take longer than most commands

        page = parse_root(html, option="--html")
        if os.path.isdir(page):
            raise ValueError(f"--html must be a file, got the folder {html}; add a name")
        files.put(page, report_page.render_runs(root, links_to=f"{'' if root.is_s3 else 'file://'}{root}/"))
    if not documents and not as_json:
        what = "runs" if is_runs else "results"
        exits.note(f"there are no {what} below {root}{'; train a model first: data-to-model run' if is_runs else ''}")
    lines = (runs if is_runs else listing).lines(documents) if documents else ()
    terminal.answer(documents, lines, as_json=as_json)
    return complain(damaged)


@command
def show(uri: Result, *, storage: Storage = "./data") -> int:
    """Print one result's manifest as JSON: parents, parameters, statistics, files.

    Examples:
      data-to-model show data/evaluations/mnist-resnet18-d5303b7678fa
    """
    terminal.show_lines([manifest.load(result_folder(uri, storage).uri).to_json().decode().rstrip()])
    return 0


@command
def lineage(uri: Result, *, storage: Storage = "./data") -> int:
    """Trace a result back to its raw files.

    Marks missing or damaged results; the exit code is then 1.

    Examples:
      data-to-model lineage data/predictions/mnist-resnet18-8f26bb22d705
    """
    folder = result_folder(uri, storage)
    lines, is_sound = checks.lineage(folder.uri, folder.kind or "result")
    terminal.show_lines(lines)
    return 0 if is_sound else exits.FAILED


@command
def verify(
    uris: Annotated[list[str] | None, typer.Argument(metavar="RESULT", help=f"only these: {exits.NAMED}")] = None,
    *,
    storage: Storage = "./data",
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="read every byte and compare checksums, also with the parents that a result was made from"
        ),
    ] = False,
    is_rebuilt: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="make one model again from its raw files, in a temporary folder; say which results have the same "
            "bytes, and why others have not; takes as long as its run",
        ),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(metavar="URI", help="with --rebuild: where its images are now (default: where they were)"),
    ] = None,
) -> int:
    """Check that every file of every result exists and has the right size.

    Prints one line per damaged file; the exit code is then 1. Without a RESULT it checks all
    results and the registry. It also names a parent below another root that does not exist any
    more.

    Examples:
      data-to-model verify --deep data/checkpoints/mnist-resnet18-e2b527dc0150
      data-to-model verify --rebuild champion:photos --data ~/copy-of-photos
    """
    if is_rebuilt:
        if len(uris or ()) != 1 or deep:
            raise ValueError("--rebuild takes one RESULT, a model, and no --deep; name its checkpoint or champion:NAME")
        from flows.cli import rebuild

        return rebuild.main(existing_root(storage), (uris or [""])[0], data=data)
    if data:
        raise ValueError(f"--data needs --rebuild, got {data}")
    damaged: list[str] = []
    if uris:
        folders = [result_folder(uri, storage) for uri in uris]
    else:
        root = existing_root(storage)
        folders = catalog.read_folders(catalog.list_folders(root, KINDS))
        folders = [folder for folder in folders if folder.committed is not None or folder.damage]
        decisions, damaged = listing.current_champions(root)
        current = {name: decision.champion for name, decision in decisions.items() if decision and decision.champion}
        damaged += [
            f"{champion}, the champion of {name}, is not committed; restore it, or promote another"
            for name, champion in current.items()
            if not manifest.is_committed(champion)
        ]
    sizes = [file.size for folder in folders if folder.manifest for file in folder.manifest.files]
    for folder in folders:
        damaged += [*checks.of_folder(folder, deep=deep), *checks.of_lost_parents(folder)]
    terminal.show_lines(damaged)
    what = f"{count(len(folders), 'result')}, {count(len(sizes), 'file')}, {terminal.size(sum(sizes))}"
    sound = "all files match their checksums" if deep else "all files present, sizes match"
    terminal.show_lines([f"{what}: {count(len(damaged), 'problem')}" if damaged else f"OK: {sound} ({what})"])
    return exits.FAILED if damaged else 0


def existing_root(storage: str) -> Root:
    root = parse_root(storage)
    try:
        access.check_readable(root)
    except FileNotFoundError:
        raise ValueError(
            f"--storage: {root} does not exist or is empty; train a model first: data-to-model run, or name "
            "another --storage"
        ) from None
    return root


def result_folder(word: str, storage: str) -> Folder:
    uri = catalog.named(parse_root(storage), word, option="uri")
    with contextlib.suppress(FileNotFoundError):
        access.check_readable(uri, option="uri")
        folder = catalog.find(uri)
        if folder.manifest or folder.damage:
            return folder
    advice = "choose one that `data-to-model ls` lists, or champion:NAME"
    raise ValueError(f"uri: {uri} is not a result, because it has no {manifest.NAME}; {advice}")


def complain(damaged: Sequence[str]) -> int:
    """Print a line on stderr for each damaged thing; return the exit code."""
    for line in damaged:
        exits.note(f"error: {line}")
    return exits.FAILED if damaged else 0
