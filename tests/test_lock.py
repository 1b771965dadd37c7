"""requirements.lock fits what Prefect and Ray say about the libraries below them."""

import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.runs import CHECKOUT

_EXTRAS = {"prefect": {""}, "ray": {"", "default", "train", "data"}, "pydocket": {""}}
"""Packages whose ranges are compared, with the extras in use; pydocket runs the services of Prefect's server."""


def _pins() -> dict[str, str]:
    text = (CHECKOUT / "requirements.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==([^ ;\n]+)", text, re.MULTILINE))


@pytest.mark.parametrize("package", _EXTRAS)
def test_pinned_versions_are_in_the_ranges_that_the_packages_above_declare(package: str) -> None:
    pins, compared = _pins(), 0
    assert metadata.version(package) == pins[package]
    for text in metadata.requires(package) or []:
        needed = Requirement(text)
        if any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in _EXTRAS[package]):
            assert needed.specifier.contains(pins[canonicalize_name(needed.name)]), text
            compared += 1
    assert compared > 5


def test_every_pin_has_the_hashes_of_its_files_and_names_no_place() -> None:
    text = (CHECKOUT / "requirements.lock").read_text()
    pins = text.replace("\\\n", "").splitlines()
    assert [pin.split()[0] for pin in pins if not re.search(r" --hash=sha256:[0-9a-f]{64}\b", pin)] == []
    assert len(pins) == len(_pins()) and "://" not in text
