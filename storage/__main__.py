"""`python -m storage`: list, inspect and verify stored results, change the champion, and delete what is not needed."""

import sys
from collections.abc import Sequence

from storage import exits
from storage.admin.change_commands import app

__all__ = ["app", "main"]


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    return exits.execute(app, sys.argv[1:] if words is None else words, prog="python -m storage")


if __name__ == "__main__":
    raise SystemExit(main())
