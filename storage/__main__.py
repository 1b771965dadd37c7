"""`python -m storage`: look at the champions of a storage root, and put one in charge by hand."""

import argparse
import os
import sys

from storage import files, manifest, registry
from storage.manifest import Damaged, Manifest
from storage.registry import Decision
from storage.uri import URI, CheckpointURI, Root, parse_root


def main() -> int:
    """0 when done, 2 after one line on stderr when the request was wrong."""
    arguments = _parser().parse_args()
    try:
        root = parse_root(arguments.storage)
        files.check_writable(root)
        if arguments.command == "champion":
            return _champion(root, arguments.data)
        return _promote(root, CheckpointURI(parse_root(arguments.uri, option="uri")))
    except (ValueError, OSError, Damaged, registry.Superseded) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--storage",
        metavar="URI",
        default=os.environ.get("PIPELINE_STORAGE", "./data"),
        help="storage root (default: $PIPELINE_STORAGE or ./data)",
    )
    parser = argparse.ArgumentParser(prog="python -m storage", description="Look at and change who is in charge.")
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("champion", parents=[shared], help="every decision on a data set, the latest last")
    show.add_argument("data", help="name of the data set, such as mnist")
    promote = commands.add_parser(
        "promote", parents=[shared], help="put a checkpoint in charge by hand, whatever the gate says"
    )
    promote.add_argument("uri", help="the checkpoint")
    return parser


def _champion(root: Root, data: str) -> int:
    decisions = registry.history(root, data)
    if not decisions:
        raise ValueError(f"data: {root} has no decision on {data!r}; run the pipeline first")
    for decision in decisions:
        verdict = "promoted" if decision.promoted else "rejected"
        print(f"{decision.number:06d}  {verdict}  {decision.challenger}\n        {decision.reason}")
    print(f"champion: {decisions[-1].champion or 'none'}")
    return 0


def _promote(root: Root, checkpoint: CheckpointURI) -> int:
    made = manifest.verify(checkpoint)
    if made.kind != "checkpoint":
        raise ValueError(f"uri must be a checkpoint, got {checkpoint} of kind {made.kind}")
    data = str(_raw(made).parameters["data"])
    latest = registry.latest(root, data)
    decision = Decision(
        number=latest.number + 1 if latest else 1,
        champion=checkpoint,
        challenger=checkpoint,
        evaluation="",
        promoted=True,
        reason="promoted by hand",
        gate={},
        metrics={},
    )
    registry.append(root, data, decision)
    print(f"{checkpoint} is now the champion of {data}")
    return 0


def _raw(made: Manifest) -> Manifest:
    """The raw dataset that everything comes from."""
    while made.kind != "raw":
        made = manifest.load(URI(made.parents["raw" if "raw" in made.parents else "prepared"]))
    return made


if __name__ == "__main__":
    raise SystemExit(main())
