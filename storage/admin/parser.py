"""The command line of `python -m storage`: every command, its options, and what they mean."""

import argparse
import os
from collections.abc import Callable
from typing import Any, NoReturn

from storage.admin import commands
from storage.admin.catalog import KINDS
from storage.manifest import Kind
from storage.uri import URI, Root, parse_root

_EPILOG = """\
examples:
  python -m storage ls                                what there is below ./data
  python -m storage ls checkpoint --storage s3://bucket/prefix
  python -m storage lineage data/predictions/mnist-resnet18-...
  python -m storage verify --deep                     read every byte and compare checksums
  python -m storage rollback mnist                    the champion before the present one takes charge again
  python -m storage gc --dry-run                      what may go, and why

Each command tells more: python -m storage gc --help
exit codes: 0 done, 1 something is damaged or failed, 2 the request was wrong, 130 interrupted"""

_LS = """\
marks:
  champion    it is in charge of its data set
  leased      somebody is at work on it
  incomplete  there are files and no manifest: its attempt died or is at work
  damaged     its manifest cannot be understood; verify looks at the other files

example:
  python -m storage ls checkpoint predictions"""

_SHOW = """\
example:
  python -m storage show data/evaluations/mnist-resnet18-ab62e833ab7a"""

_LINEAGE = """\
What is missing or damaged on the way is shown as such; the exit code is then 1.

example:
  python -m storage lineage data/predictions/mnist-resnet18-c8b532a58ef7"""

_VERIFY = """\
A line for each damaged file; the exit code is then 1. Without a URI everything that is committed is looked at, and
whether the registry's decisions can be read.

example:
  python -m storage verify --deep data/checkpoints/mnist-resnet18-628447ae9aa4"""

_CHAMPION = """\
Without a data set a line for each, with one every decision on it, the latest last.

example:
  python -m storage champion mnist"""

_PROMOTE = """\
Its bytes are verified first. Later runs judge their models against it.

example:
  python -m storage promote data/checkpoints/mnist-resnet18-628447ae9aa4"""

_ROLLBACK = """\
Its bytes are verified first. A second rollback goes further back, not forth again; promote goes anywhere. What was
rolled back is not promoted by a later run, only by hand.

example:
  python -m storage rollback mnist"""

_GC = """\
What goes: scratch that is old or whose result is committed; files that no manifest lists, once no attempt can be at
work on them; half-written files older than a day; results committed more than N days ago that nobody needs.
What stays: the registry; every champion with its predictions, evaluations and reports, and the champion before it;
whatever is younger or leased; and all that any of these was made from.

example:
  python -m storage gc --keep-days 90 --dry-run"""


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """One line, as for every other wrong request."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def make() -> argparse.ArgumentParser:
    """The parser; what it returns has `run`, which takes it and returns the exit code."""
    parser = _Parser(
        prog="python -m storage",
        description="Look at what a pipeline stored, check it, change who is in charge, and clear away.",
        epilog=_EPILOG,
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], what: str, more: str) -> argparse.ArgumentParser:
        about = f"{what[0].upper()}{what[1:]}.\n\n{more}"
        added: argparse.ArgumentParser = subparsers.add_parser(name, help=what, description=about)
        added.set_defaults(run=run)
        return added

    _add_readers(command)
    _add_writers(command)
    for added in subparsers.choices.values():
        added.add_argument(
            "--storage",
            metavar="URI",
            default=os.environ.get("PIPELINE_STORAGE", "./data"),
            help="storage root: a folder or s3://bucket/prefix (default: $PIPELINE_STORAGE or ./data)",
        )
    return parser


def _add_readers(command: Callable[..., argparse.ArgumentParser]) -> None:
    ls = command("ls", _run_ls, "list results with their sizes and marks", _LS)
    ls.add_argument("kinds", metavar="KIND", nargs="*", type=_kind, help=f"only these: {', '.join(KINDS)}")
    show = command("show", _run_show, "print one manifest: what it was made from and how, metrics, files", _SHOW)
    lineage = command("lineage", _run_lineage, "print what a result was made from, back to the raw files", _LINEAGE)
    for added in (show, lineage):
        added.add_argument("uri", metavar="URI", help="any result, as ls names it; a path may be relative")
    for added in (ls, show):
        added.add_argument("--json", action="store_true", help="print one JSON document")
    verify = command("verify", _run_verify, "check that every committed file is there with its size", _VERIFY)
    verify.add_argument("uris", metavar="URI", nargs="*", help="only these results")
    verify.add_argument("--deep", action="store_true", help="read every byte and compare SHA-256")
    champion = command("champion", _run_champion, "print who is in charge, and why", _CHAMPION)
    champion.add_argument(
        "data", metavar="DATASET", nargs="?", help="a data set: every decision on it, the latest last"
    )


def _add_writers(command: Callable[..., argparse.ArgumentParser]) -> None:
    promote = command("promote", _run_promote, "put a checkpoint in charge by hand, whatever the gate says", _PROMOTE)
    promote.add_argument("uri", metavar="URI", help="the checkpoint")
    rollback = command("rollback", _run_rollback, "put the champion before the present one back in charge", _ROLLBACK)
    rollback.add_argument("data", metavar="DATASET", help="name of the data set, as champion prints it")
    gc = command("gc", _run_gc, "remove what nobody needs any more", _GC)
    gc.add_argument("--dry-run", action="store_true", help="only print what would go; change nothing")
    gc.add_argument("--keep-days", metavar="N", type=_days, default=30, help="what is younger stays (default: 30)")


def _run_ls(given: argparse.Namespace) -> int:
    return commands.ls(_root(given), kinds=given.kinds, as_json=given.json)


def _run_show(given: argparse.Namespace) -> int:
    return commands.show(_uri(given.uri), as_json=given.json)


def _run_lineage(given: argparse.Namespace) -> int:
    return commands.show_lineage(_uri(given.uri))


def _run_verify(given: argparse.Namespace) -> int:
    return commands.verify(_root(given), uris=[_uri(uri) for uri in given.uris], deep=given.deep)


def _run_champion(given: argparse.Namespace) -> int:
    if given.data is None:
        return commands.show_champions(_root(given))
    return commands.show_decisions(_root(given), given.data)


def _run_promote(given: argparse.Namespace) -> int:
    return commands.promote(_root(given), _uri(given.uri))


def _run_rollback(given: argparse.Namespace) -> int:
    return commands.rollback(_root(given), given.data)


def _run_gc(given: argparse.Namespace) -> int:
    return commands.gc(_root(given), keep_days=given.keep_days, is_dry_run=given.dry_run)


def _root(given: argparse.Namespace) -> Root:
    return parse_root(given.storage)


def _uri(value: str) -> URI:
    return URI(parse_root(value, option="uri"))


def _kind(value: str) -> Kind:
    for kind in KINDS:
        if kind == value:
            return kind
    raise argparse.ArgumentTypeError(f"must be one of {', '.join(KINDS)}, got {value!r}")


def _days(value: str) -> int:
    if value.isascii() and value.isdigit():
        return int(value)
    raise argparse.ArgumentTypeError(f"must be a whole number of days >= 0, got {value!r}")
