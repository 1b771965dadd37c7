"""The page of all runs: the champions, and every run with its metrics and report, as storage is now."""

from typing import Any
from urllib.parse import quote

from storage.admin import runs
from storage.kinds import REPORT
from storage.uri import Root
from tasks import report_page


def render(root: Root, *, links_to: str) -> bytes:
    """Render the page as self-contained HTML without scripts; the same storage gives the same bytes.

    Args:
        root: Storage root.
        links_to: Address of the root for the links to reports, with a slash at the end; not quoted.
    """
    rows, damaged = runs.of(root)
    template = report_page.environment().get_template("runs.html.j2")
    return template.render(
        root_name=root.name,
        rows=[_shown(row, links_to) for row in reversed(rows)],
        damaged=damaged,
        longest_word=0,
    ).encode()


def _shown(row: dict[str, Any], links_to: str) -> dict[str, Any]:
    link = quote(f"{links_to}{REPORT.folder}/{row['uri'].name}/index.html", safe="/:")
    return row | {"link": link, "changed": runs.changes_as_text(row["changes"]), "mark": runs.mark(row)}
