"""The command line of `python -m storage`: every command with its options and help."""

import argparse
import os
from collections.abc import Callable
from typing import Any, NoReturn

from storage import reference, terminal
from storage.admin import commands
from storage.kinds import KINDS
from storage.uri import URI, Root, is_name, parse_root

_EPILOG = """\
examples:
  python -m storage ls                                list the results below ./data
  python -m storage ls checkpoint --storage s3://bucket/prefix
  python -m storage lineage data/predictions/mnist-resnet18-...
  python -m storage verify --deep                     read every byte and compare checksums
  python -m storage rollback mnist                    restore the previous champion
  python -m storage gc --dry-run                      list what can be deleted, and why

Help for a command: python -m storage gc --help
exit codes: 0 success, 1 damage or failure, 2 invalid request, 130 interrupted"""

_LS = """\
The newest result is last. Times are local; with --json they include the time zone. The accuracy of a model, of its
predictions and of its report is measured on the test rows of its own data.

marks:
  champion    current champion of its data set
  leased      a run is producing it now
  incomplete  there are files but no manifest: the attempt failed or is still running
  damaged     its manifest cannot be read; verify checks the other files

Run folders without a result are listed below the results:
  running      a run is producing the result now, on the named host
  waiting      an active run will produce it
  interrupted  the run ended or failed before the result; run the same command again to resume it

example:
  python -m storage ls checkpoint predictions"""

_SHOW = """\
example:
  python -m storage show data/evaluations/mnist-resnet18-449ebcf16603"""

_LINEAGE = """\
Missing or damaged results are marked; the exit code is then 1.

example:
  python -m storage lineage data/predictions/mnist-resnet18-953f9a2f264c
  python -m storage lineage data/predictions/photos-1234abcd-0bbc80616cbc --file "2026/May/photo 3.jpg\""""

_VERIFY = """\
Prints one line per damaged file; the exit code is then 1. Without a URI all committed results are checked, and that the
decisions in the registry are unchanged. With --deep also checks that each parent still has the bytes that a result was
made from; they can differ if a parent was deleted and made again.

example:
  python -m storage verify --deep data/checkpoints/mnist-resnet18-23ced72ba327"""

_CHAMPION = """\
Without a championship, prints one line for each: the champion, since when, who decided and why. With one, prints all
its decisions, the latest last: promoted, rejected, rollback, or revoked (if the checkpoint was deleted before it became
champion).

example:
  python -m storage champion mnist"""

_PROMOTE = """\
Its bytes are verified first. Later runs with the checkpoint's storage root compare their models with it. Prints a
warning if its test accuracy is below that of the champion before.

example:
  python -m storage promote data/checkpoints/mnist-resnet18-23ced72ba327 --reason "fewer 4s taken for 9s\""""

_ROLLBACK = """\
Its bytes are verified first. A second rollback goes back one more champion; it does not undo the first. Use promote to
pick any checkpoint. Later runs do not promote a model that was rolled back; only the promote command does.

example:
  python -m storage rollback mnist"""

_GC = """\
Deleted: scratch files that are old or whose result is committed; files that no manifest lists, once no active attempt
can use them; incomplete writes older than a day; results committed more than N days ago that are not needed.
Kept: the registry; every champion with its predictions, evaluations and reports; the previous champion and the best one
so far; whatever is younger or leased; and everything that any of these was made from.

example:
  python -m storage gc --keep-days 90 --dry-run"""


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2, as for every other invalid request."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def make() -> argparse.ArgumentParser:
    """Build the parser; parsed arguments have `run`, a function that takes them and returns the exit code."""
    parser = _Parser(
        prog="python -m storage",
        description="List and verify stored results, change the champion, and delete what is not needed.",
        epilog=_EPILOG,
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, what: str, more: str) -> argparse.ArgumentParser:
        about = f"{what[0].upper()}{what[1:]}.\n\n{more}"
        added: argparse.ArgumentParser = subparsers.add_parser(name, help=what, description=about)
        return added

    _add_readers(command)
    _add_writers(command)
    for name, added in subparsers.choices.items():
        default = None if name == "promote" else os.environ.get("PIPELINE_STORAGE", "./data")
        told = "the root of the checkpoint" if default is None else "$PIPELINE_STORAGE or ./data"
        what = f"storage root: a folder or s3://bucket/prefix (default: {told})"
        added.add_argument("--storage", metavar="URI", default=default, help=what)
    return parser


def _add_readers(command: Callable[..., argparse.ArgumentParser]) -> None:
    ls = command("ls", "list results by time, with test accuracy, sizes and marks, and unfinished work", _LS)
    ls.set_defaults(run=lambda given: commands.ls(_root(given), kinds=given.kinds, as_json=given.json))
    ls.add_argument("kinds", metavar="KIND", nargs="*", type=_kind, help=f"only these: {', '.join(KINDS)}")
    show = command("show", "print one manifest: parents, parameters, metrics, files", _SHOW)
    show.set_defaults(run=lambda given: commands.show(_uri(given.uri), as_json=given.json))
    lineage = command("lineage", "print the parents of a result, back to the raw files", _LINEAGE)
    lineage.set_defaults(run=lambda given: commands.show_lineage(_uri(given.uri), file=given.file, row=given.row))
    of_row = "also trace the prediction for this file of yours, back to the file's SHA-256"
    lineage.add_argument("--file", metavar="NAME", help=of_row)
    lineage.add_argument("--row", metavar="N", type=int, help="number of the row in --file, from 0, if that is Parquet")
    for added in (show, lineage):
        added.add_argument("uri", metavar="URI", help="URI of a result, as printed by ls; may be a relative path")
    for added in (ls, show):
        added.add_argument("--json", action="store_true", help="print one JSON document")
    verify = command("verify", "check that every committed file exists and has the right size", _VERIFY)
    verify.set_defaults(run=lambda given: commands.verify(_root(given), uris=[*map(_uri, given.uris)], deep=given.deep))
    verify.add_argument("uris", metavar="URI", nargs="*", help="only these results")
    read_all = "read every byte and compare checksums, also those of parents"
    verify.add_argument("--deep", action="store_true", help=read_all)
    champion = command(
        "champion", "print the current champions, with time, author and reason of the decision", _CHAMPION
    )
    champion.set_defaults(run=lambda given: commands.show_champions(_root(given), given.data))
    which = "name of a championship, usually the data set's: print all its decisions, the latest last"
    champion.add_argument("data", metavar="CHAMPIONSHIP", nargs="?", help=which)


def _add_writers(command: Callable[..., argparse.ArgumentParser]) -> None:
    promote = command("promote", "make a checkpoint the champion, regardless of the gate", _PROMOTE)
    promote.set_defaults(run=_promote)
    promote.add_argument("uri", metavar="URI", help="the checkpoint")
    default = "championship (default: the one it competed in, else that of its data)"
    promote.add_argument("--championship", metavar="NAME", type=_name, help=default)
    promote.add_argument("--reason", metavar="TEXT", type=_text, help="why; recorded and shown with the decision")
    rollback = command("rollback", "restore the previous champion", _ROLLBACK)
    rollback.set_defaults(run=lambda given: commands.rollback(_root(given), given.data))
    named = "name of the championship, as printed by the champion command"
    rollback.add_argument("data", metavar="CHAMPIONSHIP", help=named)
    gc = command("gc", "delete what is no longer needed", _GC)
    gc.set_defaults(run=lambda given: commands.gc(_root(given), keep_days=given.keep_days, is_dry_run=given.dry_run))
    gc.add_argument("--dry-run", action="store_true", help="list what can be deleted, without deleting it")
    younger = "keep what is younger than N days (default: 30)"
    gc.add_argument("--keep-days", metavar="N", type=_days, default=30, help=younger)


def _promote(given: argparse.Namespace) -> int:
    asked = None if given.storage is None else _root(given)
    return commands.promote(asked, _uri(given.uri), name=given.championship, reason=given.reason)


def _root(given: argparse.Namespace) -> Root:
    root = parse_root(given.storage)
    terminal.keep_whole(root)
    return root


def _uri(value: str) -> URI:
    uri = URI(parse_root(value, option="uri"))
    terminal.keep_whole(reference.root_of(uri))
    return uri


def _kind(value: str) -> str:
    if value in KINDS:
        return value
    raise argparse.ArgumentTypeError(f"must be one of {', '.join(KINDS)}, got {value!r}")


def _name(value: str) -> str:
    if is_name(value):
        return value
    raise argparse.ArgumentTypeError(f"must be 1 to 64 of a-z, 0-9 and '-', got {value!r}")


def _text(value: str) -> str:
    if text := " ".join(value.split()):
        return text
    raise argparse.ArgumentTypeError("must not be empty; omit it to record none")


def _days(value: str) -> int:
    if value.isascii() and value.isdigit():
        return int(value)
    raise argparse.ArgumentTypeError(f"must be a whole number of days >= 0, got {value!r}")
