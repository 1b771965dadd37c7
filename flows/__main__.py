"""`data-to-model`, also `python -m flows`: the flows, their servers and what `python -m storage` does, as commands."""

from flows.cli import app
from storage.__main__ import app as storage_app


def main() -> int:
    """Run the command that the command line names; return its exit code."""
    return app.main(more=storage_app)


if __name__ == "__main__":
    raise SystemExit(main())
