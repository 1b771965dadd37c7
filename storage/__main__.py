"""`python -m storage`: list, inspect and verify stored results, change the champion, and delete what is not needed."""

import sys
from collections.abc import Sequence

from storage import exits, files
from storage.admin.change_commands import ON_CHANGE, app
from storage.uri import Root

__all__ = ["app", "main"]


def _write_page(root: Root) -> None:
    """Write the page of all runs again, if there is one."""
    from tasks import runs_page  # its imports take longer than most commands

    if files.exists(root.child(runs_page.NAME)):
        runs_page.update(root, warn=exits.note)


ON_CHANGE.append(_write_page)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    return exits.execute(app, sys.argv[1:] if words is None else words, prog="python -m storage")


if __name__ == "__main__":
    raise SystemExit(main())
