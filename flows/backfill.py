"""Backfill: run the flow on several versions of a data set, oldest first; existing results are reused."""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

from flows.cli import main as command_line
from flows.cli import preflight
from flows.cli.arguments import Parser, add_recipe, add_shared, parsed
from storage import in_use, terminal
from storage.exits import HUNG_UP, INTERRUPTED, guarded, note, refused_if_invalid
from storage.uri import check_name, parse_root
from tasks.learning import recipes
from tasks.resources import capacity, scaling
from tasks.runners import node_checks

_EPILOG = """\
A version is a raw dataset below <storage>/datasets/raw, such as mnist-1d9802c1c0d9; `python -m storage ls raw` lists
them. The oldest is the one that was committed first. Existing results are reused: running the command again adds only
what is missing.

examples:
  python flows/backfill.py --list                        list the versions of the recipe's data set, oldest first
  python flows/backfill.py                               all versions
  python flows/backfill.py mnist-1d9802c1c0d9 mnist-...  only these
  python flows/backfill.py --from mnist-1d9802c1c0d9     this one and all newer ones"""


def parser() -> argparse.ArgumentParser:
    """Define the command line's options."""
    parser = Parser(
        prog="python flows/backfill.py",
        description="Train and evaluate a model on several versions of a data set and compare each\n"
        "with the champion. The decisions are recorded; the champion changes only with\n--promote.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "version", nargs="*", help="name or URI of a raw dataset (default: all versions of the data set)"
    )
    parser.add_argument(
        "--from", metavar="VERSION", dest="first", help="oldest version to include (default: the oldest)"
    )
    parser.add_argument("--to", metavar="VERSION", dest="last", help="newest version to include (default: the newest)")
    parser.add_argument(
        "--promote",
        action="store_true",
        help="promote a model that passes the gate on its version's rows (default: only record the decisions)",
    )
    parser.add_argument("--list", action="store_true", help="list the versions, oldest first, and exit")
    add_recipe(parser, default="mnist-resnet18")
    parser.set_defaults(recipe="mnist-resnet18")
    printed = "JSON on stdout and logs on stderr: one document per version, with --list one array (default: tables)"
    add_shared(parser, printed=printed)
    return parser


def main() -> int:
    """Run the backfill; return 0, 1 (a version failed), 2 (invalid request), 129 (hung up) or 130 (interrupted)."""
    arguments = parsed(parser())
    return guarded(lambda: _main(arguments))


def _main(arguments: argparse.Namespace) -> int:
    from tasks.planning import dataset_versions, make_plan

    with refused_if_invalid():
        recipe = recipes.override(recipes.load(arguments.recipe), arguments.settings)
        make_plan.check_workers(arguments.workers)
        if arguments.championship:
            check_name(arguments.championship, field="--championship")
        capacity.check_workers(arguments.workers, scaling.needs_of(recipe))
        root = parse_root(arguments.storage)
        found = dataset_versions.known(root, recipe.data.source)
        chosen = dataset_versions.chosen(found, names=arguments.version, first=arguments.first, last=arguments.last)
        if not arguments.list:
            dataset_versions.check_one(root, chosen, named=bool(arguments.championship))
            node_checks.check_nodes(root, arguments.workers, scaling.needs_of(recipe))
    if arguments.list:
        for line in [json.dumps(chosen, indent=1)] if arguments.json else chosen:
            terminal.show(line)
        return 0
    failed: list[str] = []
    with in_use.using(root, chosen, owner="backfill"):  # also protects versions whose turn has not come yet
        for number, uri in enumerate(chosen, start=1):
            note(f"\nversion {number} of {len(chosen)}: {uri}")
            request = preflight.request(arguments, recipe, storage=arguments.storage, data=uri)
            request["judge_only"] = not arguments.promote
            run = partial(command_line.run, command_line.training_flow, request, as_json=arguments.json)
            code = guarded(run)
            if code in (HUNG_UP, INTERRUPTED):
                return code
            if code:
                failed.append(str(uri))
    if failed:
        note(f"{len(failed)} of {len(chosen)} versions failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
