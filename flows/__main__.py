"""`data-to-model`, also `python -m flows`: the commands of the flows, their servers and the storage."""

from collections.abc import Sequence

from flows.cli import app
from flows.cli.registry_commands import app as storage_app

app.app.registered_commands += storage_app.registered_commands


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that `words`, or else the command line, names; return its exit code."""
    return app.main(words=words)


if __name__ == "__main__":
    raise SystemExit(main())
