"""What `python -m storage` does, a function for each command; it returns 0, or 1 when something is damaged.

All raise `ValueError` for what a person should have typed otherwise.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from storage import files, lease, manifest
from storage.admin import catalog, championship, damage, lineage, listing, text
from storage.admin.catalog import KINDS, Folder
from storage.admin.garbage import Garbage
from storage.manifest import Damaged, File, Kind, Manifest
from storage.uri import URI, CheckpointURI, Root

_PROGRESS_S = 5.0
"""How often a long command says how far it is."""


def ls(root: Root, *, kinds: Sequence[Kind], as_json: bool) -> int:
    """Print every result below `root`, or only those of `kinds`."""
    _check_root(root)
    standings, wrong = listing.champions(root)
    documents = listing.of(root, kinds or KINDS, [champion for champion, _ in standings.values()])
    if as_json:
        print(json.dumps(documents, indent=1))
    elif documents:
        _print(listing.lines(documents))
    else:
        _say(f"nothing is committed below {root}")
    return _complain(wrong)


def show(uri: URI, *, as_json: bool) -> int:
    """Print the manifest of `uri`, for people or as it is."""
    made = _committed(uri)
    _print([made.to_json().decode().rstrip()] if as_json else text.page(uri, made))
    return 0


def show_lineage(uri: URI) -> int:
    """Print what `uri` was made from."""
    tree = lineage.of(uri, _folder(uri).kind or "result")
    _print(tree.lines)
    return 0 if tree.is_sound else 1


def verify(root: Root, *, uris: Sequence[URI], deep: bool) -> int:
    """Print a line for every damaged file of `uris`; without any, of all that is committed, and of the registry."""
    if uris:
        folders = [_folder(uri) for uri in uris]
    else:
        _check_root(root)
        folders = catalog.survey(catalog.places(root, KINDS))
        folders = [folder for folder in folders if folder.committed is not None or folder.damage]
    progress = _progress(folders)
    num_damaged = 0
    for source in [damage.of_folder(folder, deep=deep, on_file=progress) for folder in folders]:
        num_damaged += _print(source)
    num_damaged += 0 if uris else _print(damage.of_registry(root))
    listed = [file for folder in folders if folder.manifest for file in folder.manifest.files]
    size = text.size(sum(file.size for file in listed))
    what = f"{text.count(len(folders), 'result')}, {text.count(len(listed), 'file')}, {size}"
    if not num_damaged:
        _print([f"{what}: all {'as committed' if deep else 'there with their sizes'}"])
        return 0
    _print([f"{what}: {num_damaged} damaged"])
    return 1


def show_champions(root: Root) -> int:
    """Print a line for each data set: who is in charge, and why."""
    _check_root(root)
    standings, wrong = listing.champions(root)
    if standings:
        _print(text.table([(data, champion or "none", why) for data, (champion, why) in standings.items()]))
    elif not wrong:
        _say(f"{root} has no decision on any data set; run the pipeline first")
    return _complain(wrong)


def show_decisions(root: Root, data: str) -> int:
    """Print every decision on `data`, the latest last."""
    _check_root(root)
    decisions = championship.decisions(root, data)
    for decision in decisions:
        verdict = "promoted" if decision.promoted else "rejected"
        _print([f"{decision.number:06d}  {verdict}  {decision.challenger}", f"        {decision.reason}"])
    _print([f"champion: {(decisions[-1].champion if decisions else None) or 'none'}"])
    return 0


def promote(root: Root, uri: URI) -> int:
    """Put a checkpoint in charge, whatever the gate says."""
    _committed(uri)
    files.check_writable(root)
    catalog.check_links(root)
    data = championship.promote(root, CheckpointURI(uri))
    _print([f"{uri} is now the champion of {data}"])
    return 0


def rollback(root: Root, data: str) -> int:
    """Put the champion before the present one back in charge."""
    _check_root(root)
    championship.decisions(root, data)
    files.check_writable(root)
    decision = championship.rollback(root, data)
    _print([f"{decision.champion} is the champion of {data} again ({decision.reason})"])
    return 0


def gc(root: Root, *, keep_days: int, is_dry_run: bool) -> int:
    """Remove what nobody needs any more and print what went, or only what would go."""
    _check_root(root)
    if not is_dry_run:
        files.check_writable(root)
    try:
        return _gc(
            Garbage(root, keep_days=keep_days, is_leased=lambda uri: lease.holder(root, uri) is not None),
            is_dry_run=is_dry_run,
        )
    except Damaged as error:
        raise Damaged(f"{error}; before that is mended nothing more is removed") from None


def _gc(garbage: Garbage, *, is_dry_run: bool) -> int:
    num_things = num_bytes = 0
    for batch in garbage.plan():
        gone = batch.removals if is_dry_run else garbage.remove(batch)
        for removal in gone:
            verb = "would remove" if is_dry_run else "removed"
            _print([f"{verb}  {text.size(removal.size):>9}  {removal.uri}  ({removal.why})"])
            num_things, num_bytes = num_things + 1, num_bytes + removal.size
        for removal in batch.removals:
            if removal.uri not in {each.uri for each in gone}:
                _say(f"left {removal.uri}: it is needed, changed or gone since")
    if garbage.is_blocked:
        _say("somebody is at work, and nothing tells on what: all that is committed stays this time")
    verb = "would be removed; nothing was changed" if is_dry_run else "removed"
    _print([f"{text.count(num_things, 'thing')}, {text.size(num_bytes)} {verb}"])
    return 0


def _check_root(root: Root) -> None:
    try:
        files.check_readable(root)
    except FileNotFoundError:
        raise ValueError(f"--storage: there is nothing at {root}; run the pipeline first, or name another") from None
    catalog.check_links(root)


def _folder(uri: URI) -> Folder:
    """What lies at `uri`; a `ValueError` when nothing is committed there."""
    try:
        files.check_readable(uri, option="uri")
    except FileNotFoundError:
        raise ValueError(f"uri: there is nothing at {uri}; python -m storage ls tells what there is") from None
    folder = catalog.find(uri)
    if folder.manifest is None and not folder.damage:
        raise ValueError(f"uri: {uri} is not committed: it has no {manifest.NAME}; python -m storage ls tells what is")
    return folder


def _committed(uri: URI) -> Manifest:
    folder = _folder(uri)
    if folder.manifest is None:
        raise Damaged(folder.damage)
    return folder.manifest


def _progress(folders: Sequence[Folder]) -> Callable[[File], None]:
    """A function that counts files and says from time to time how far that is."""
    total = sum(file.size for folder in folders if folder.manifest for file in folder.manifest.files)
    done, said_at = 0, time.monotonic()

    def count(file: File) -> None:
        nonlocal done, said_at
        done += file.size
        if time.monotonic() - said_at >= _PROGRESS_S:
            said_at = time.monotonic()
            _say(f"checked {text.size(done)} of {text.size(total)}")

    return count


def _print(lines: Iterable[str]) -> int:
    """Print each as soon as it is known, and return how many there were."""
    num_lines = 0
    for line in lines:
        print(line, flush=True)
        num_lines += 1
    return num_lines


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _complain(wrong: Sequence[str]) -> int:
    """1 after a line on stderr for each of `wrong`, 0 when there is none."""
    for line in wrong:
        _say(f"error: {line}")
    return 1 if wrong else 0
