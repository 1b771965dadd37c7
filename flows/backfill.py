"""Backfill: the flow over several versions of a data set, oldest first; what is done is done once."""

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

_EPILOG = """\
A version is a raw dataset below <storage>/datasets/raw, such as mnist-0164ad4b8b70; `python -m storage ls raw` lists
them. Its age is that of its manifest. What is done already is found: the same command again does only what is missing.

examples:
  python flows/backfill.py --list                        the versions of the recipe's data set, oldest first
  python flows/backfill.py                               all of them
  python flows/backfill.py mnist-0164ad4b8b70 mnist-...  these
  python flows/backfill.py --from mnist-0164ad4b8b70     this one and all that came after it"""


def parser() -> argparse.ArgumentParser:
    """The options and what they mean."""
    from flows import cli

    parser = cli.Parser(
        prog="python flows/backfill.py",
        description="Train, evaluate and judge a model on each of several versions of a data set.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("version", nargs="*", help="name or URI of a raw dataset (default: all of the data set)")
    parser.add_argument("--from", metavar="VERSION", dest="first", help="the oldest one to do (default: the first)")
    parser.add_argument("--to", metavar="VERSION", dest="last", help="the newest one to do (default: the latest)")
    parser.add_argument("--list", action="store_true", help="say which versions there are, oldest first, and stop")
    cli.add_recipe(parser, default="mnist-resnet18")
    parser.set_defaults(recipe="mnist-resnet18")
    cli.add_shared(parser)
    return parser


def main() -> int:
    """0 when every version is done, 1 when one failed, 2 for a wrong request, 130 when interrupted."""
    from flows import cli
    from tasks.jobs import dashboard

    arguments = parser().parse_args()
    dashboard.choose(arguments.dashboard)
    return cli.guarded(lambda: _main(arguments))


def _main(arguments: argparse.Namespace) -> int:
    from flows import checks, cli
    from storage.uri import parse_root
    from tasks import capacity, plan, preflight, versions
    from tasks.learning import recipes

    try:
        recipe = recipes.override(recipes.load(arguments.recipe), arguments.settings)
        plan.check_numbers(
            workers=arguments.workers, deadline_minutes=arguments.deadline, stall_minutes=arguments.stall
        )
        capacity.check_workers(arguments.workers, plan.needs_of(recipe))
        root = parse_root(arguments.storage)
        found = versions.known(root, recipe.data)
        chosen = versions.chosen(found, names=arguments.version, first=arguments.first, last=arguments.last)
        if not arguments.list:
            preflight.check_nodes(root, arguments.workers)
    except ValueError as error:
        cli.fail(str(error), code=2)
    if arguments.list:
        for one in chosen:
            print(one)
        return 0
    failed: list[str] = []
    for number, uri in enumerate(chosen, start=1):
        cli.note(f"\nversion {number} of {len(chosen)}: {uri}")
        request = checks.request(arguments, recipe, storage=arguments.storage, data=uri)
        code = cli.guarded(partial(cli.run, "pipeline", request, as_json=arguments.json))
        if code == cli.INTERRUPTED:
            return code
        if code:
            failed.append(str(uri))
    if failed:
        cli.note(f"{len(failed)} of {len(chosen)} versions failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
