"""The commands of `python -m storage`, one function each; it returns 0, or 1 if something is damaged.

Every command raises `ValueError` for an invalid request.
"""

import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from storage import access, files, in_use, manifest, reference, registry, s3, terminal
from storage.admin import catalog, champions, format, lineage, listing, row_lineage
from storage.admin import verify as damage
from storage.admin.catalog import Folder
from storage.admin.gc import Garbage
from storage.error_policy import DiskFull
from storage.kinds import KINDS
from storage.manifest import Damaged, File, Manifest
from storage.uri import URI, CheckpointURI, Root

_PROGRESS_S = 5.0
_GC_WRITES = 2**16
"""Bytes that garbage collection writes at most before it deletes anything: its lease, in blocks of the disk."""


def ls(root: Root, *, kinds: Sequence[str], as_json: bool) -> int:
    """Print every result below `root`, or only those of `kinds`, and unfinished work."""
    _check_root(root)
    current_champions, wrong = listing.champions(root)
    at_work, damaged = listing.unfinished(root, kinds or KINDS)
    documents = listing.of(
        root,
        kinds or KINDS,
        [decision.champion for decision in current_champions.values() if decision and decision.champion],
    )
    if as_json:
        print(json.dumps(documents, indent=1))
        return _complain(wrong)
    if documents:
        _print(listing.lines(documents, columns=terminal.width(sys.stdout)))
    else:
        _say(f"there are no results below {root}")
    _print(listing.unfinished_lines(at_work, columns=terminal.width(sys.stdout)))
    return _complain([*wrong, *damaged])


def show(uri: URI, *, as_json: bool) -> int:
    """Print the manifest of `uri`, as a readable page or as JSON."""
    folder, made = _committed(uri)
    if as_json:
        print(made.to_json().decode().rstrip())
    else:
        _print(format.page(folder, made))
    return 0


def show_lineage(uri: URI, *, file: str | None, row: int | None) -> int:
    """Print everything that `uri` was made from, after the prediction and origin of the row of `file`, if named."""
    kind = _folder(uri).kind
    if file is None and row is not None:
        raise ValueError(f"--row={row} needs --file, the Parquet file that it is a row of")
    _print(row_lineage.trace(uri, file=file, row=row) if file is not None else ())
    tree = lineage.of(uri, kind or "result")
    _print(tree.lines)
    return 0 if tree.is_sound else 1


def verify(root: Root, *, uris: Sequence[URI], deep: bool) -> int:
    """Print a line for every damaged file of `uris`; without `uris`, of all committed results and the registry."""
    if uris:
        folders = [_folder(uri) for uri in uris]
    else:
        _check_root(root)
        folders = catalog.read_folders(catalog.list_folders(root, KINDS))
        folders = [folder for folder in folders if folder.committed is not None or folder.damage]
    progress = _progress(folders)
    num_damaged = sum(_print(damage.of_folder(folder, deep=deep, on_file=progress)) for folder in folders)
    num_damaged += 0 if uris else _print(damage.of_registry(root))
    listed = [file for folder in folders if folder.manifest for file in folder.manifest.files]
    size = format.size(sum(file.size for file in listed))
    what = f"{terminal.count(len(folders), 'result')}, {terminal.count(len(listed), 'file')}, {size}"
    sound = "all files match their checksums" if deep else "all files present, sizes match"
    _print([f"{what}: {num_damaged} damaged" if num_damaged else f"OK: {sound} ({what})"])
    return 1 if num_damaged else 0


def show_champions(root: Root, data: str | None) -> int:
    """Print every decision on `data`; if none, for each data set its champion and the decision that promoted it."""
    _check_root(root)
    if data is not None:
        return _show_decisions(root, data)
    current_champions, wrong = listing.champions(root)
    if current_champions:
        rows = [
            (data, str(decision.champion), format.decided(decision))
            if decision
            else (data, "none", "no model passed the gate")
            for data, decision in current_champions.items()
        ]
        _print(format.table(rows))
    elif not wrong:
        _say(f"{root} has no decisions; run the pipeline first")
    return _complain(wrong)


def _show_decisions(root: Root, data: str) -> int:
    decisions = champions.decisions(root, data)
    for decision in decisions:
        _print([f"{decision.number:06d}  {decision.verdict}  {decision.challenger}"])
        compared = [f"compared with the {role}: {found}" for role, found in decision.differences.items()]
        _print(f"        {line}" for line in [format.decided(decision), *compared])
    _print([f"champion: {(decisions[-1].champion if decisions else None) or 'none'}"])
    return 0


def promote(asked: Root | None, uri: URI, *, name: str | None, reason: str | None) -> int:
    """Make a checkpoint the champion of championship `name` (none: its own), regardless of the gate.

    The decision is recorded below the checkpoint's storage root, which `asked` must be; only for a copy outside the
    folders of a root, `asked` decides.
    """
    _committed(uri)
    root = _root_of(uri, asked)
    access.check_writable(root)
    catalog.check_links(root)
    data = champions.promote(root, CheckpointURI(uri), name=name, reason=reason)
    _print([f"{uri} is now the champion of {data}"])
    _warn_if_worse(root, data)
    return 0


def _warn_if_worse(root: Root, data: str) -> None:
    """Warn if the champion of `data` has a lower test accuracy than the one before, as far as both are known."""
    *_, before, now = [None, None, *(decision.champion for decision in registry.history(root, data))]
    folders = catalog.read_folders(catalog.list_folders(root, ("checkpoint", "predictions", "evaluation")))
    accuracies = listing.accuracies(folders)
    if now and before and accuracies.get(now, 1) < accuracies.get(before, 0):
        tested_on = {folder.uri: folder.parents.get("prepared") for folder in folders}
        rows = "" if tested_on[now] == tested_on[before] else ", each on the test rows of its own data"
        _say(f"warning: accuracy {accuracies[now]:.4f}, the champion had {accuracies[before]:.4f}{rows}")


def rollback(root: Root, data: str) -> int:
    """Restore the previous champion."""
    _check_root(root)
    champions.decisions(root, data)
    access.check_writable(root)
    decision = champions.rollback(root, data)
    _print([f"{decision.champion} is again the champion of {data} ({decision.reason})"])
    return 0


def gc(root: Root, *, keep_days: int, is_dry_run: bool) -> int:
    """Delete everything that is no longer needed and print it; a dry run only prints it."""
    _check_root(root)
    if not is_dry_run:
        if not root.is_s3 and files.free_bytes(root) < _GC_WRITES:
            raise DiskFull(
                f"--storage: the disk of {root} is full, and gc needs 64 kB for its lease: delete a folder that "
                "`python -m storage gc --dry-run` lists, then run gc again"
            )
        access.check_writable(root)
    try:
        garbage = Garbage(root, keep_days=keep_days)
        return _gc(root, garbage, is_dry_run=is_dry_run)
    except Damaged as error:
        raise Damaged(f"{error}; nothing more is deleted until this is fixed") from None


def _gc(root: Root, garbage: Garbage, *, is_dry_run: bool) -> int:
    num_items = num_bytes = 0
    for batch in garbage.plan():
        if is_dry_run:
            gone = batch.removals
        else:
            with in_use.collecting(root) as held:
                # A request that gets no answer may still reach the storage as long as it is tried.
                has_lapsed = functools.partial(held.has_lapsed, within_s=s3.LONGEST_TRY_S)
                gone = garbage.remove(batch, has_lapsed=has_lapsed)
        for removal in gone:
            head = f"{'would delete' if is_dry_run else 'deleted'}  {format.size(removal.size):>9}"
            _print(format.around(head, removal.uri, f"({removal.why})", columns=terminal.width(sys.stdout)))
            num_items, num_bytes = num_items + 1, num_bytes + removal.size
        for removal in batch.removals:
            if removal.uri not in {each.uri for each in gone}:
                _say(f"kept {removal.uri}: it is now needed, was changed or deleted, or gc's lease expired")
    total = "Dry run: would delete" if is_dry_run else "Deleted"
    _print([f"{total} {terminal.count(num_items, 'item')} ({format.size(num_bytes)})"])
    return 0


def _check_root(root: Root) -> None:
    try:
        access.check_readable(root)
    except FileNotFoundError:
        raise ValueError(
            f"--storage: {root} does not exist or is empty; run the pipeline first, or choose another root"
        ) from None
    catalog.check_links(root)


def _root_of(uri: URI, asked: Root | None) -> Root:
    own = reference.root_of(uri)
    is_copy = own == uri.parent
    if is_copy and asked is None:
        raise ValueError(f"uri: {uri} is not below a storage root; name the storage root with --storage URI")
    if asked is not None and not is_copy and not reference.is_same(asked, own):
        raise ValueError(f"--storage must be {own}, the root of {uri}, got {asked}; omit --storage")
    return asked or own


def _folder(uri: URI) -> Folder:
    try:
        access.check_readable(uri, option="uri")
    except FileNotFoundError:
        raise ValueError(f"uri: there is nothing at {uri}; `python -m storage ls` lists the results") from None
    folder = catalog.find(uri)
    if folder.manifest is None and not folder.damage:
        raise ValueError(
            f"uri: {uri} is not committed: it has no {manifest.NAME}; `python -m storage ls` lists the results"
        )
    return folder


def _committed(uri: URI) -> tuple[Folder, Manifest]:
    folder = _folder(uri)
    if folder.manifest is None:
        raise Damaged(folder.damage)
    return folder, folder.manifest


def _progress(folders: Sequence[Folder]) -> Callable[[File], None]:
    total = sum(file.size for folder in folders if folder.manifest for file in folder.manifest.files)
    done, said_at = 0, time.monotonic()

    def count(file: File) -> None:
        nonlocal done, said_at
        done += file.size
        if time.monotonic() - said_at >= _PROGRESS_S:
            said_at = time.monotonic()
            _say(f"checked {format.size(done)} of {format.size(total)}")

    return count


def _print(lines: Iterable[str]) -> int:
    num_lines = 0
    for line in lines:
        terminal.show(line)
        num_lines += 1
    return num_lines


def _say(line: str) -> None:
    terminal.show(line, sys.stderr)


def _complain(wrong: Sequence[str]) -> int:
    for line in wrong:
        _say(f"error: {line}")
    return 1 if wrong else 0
