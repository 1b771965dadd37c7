"""The keys that `docs/reference/files.md` names, to compare with those of real documents."""

import re

from tests.runs import CHECKOUT


def keys(heading: str) -> set[str]:
    """Return the names in the first column of the table below `heading`."""
    page = (CHECKOUT / "docs/reference/files.md").read_text()
    (section,) = re.findall(rf"^##+ {re.escape(heading)}$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([a-z0-9_]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE))))
