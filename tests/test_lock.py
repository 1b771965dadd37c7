"""requirements.lock fits what Prefect and Ray say about the libraries below them, and what Prefect was tested with."""

import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.runs import CHECKOUT

_EXTRAS = {"prefect": {""}, "ray": {"", "default", "train", "data"}, "pydocket": {""}}
"""Packages whose ranges are compared, with the extras in use; pydocket runs the services of Prefect's server."""

_PREFECT_TESTED = {
    "aiosqlite": "0.22.1",
    "alembic": "1.18.5",
    "anyio": "4.14.2",
    "apprise": "1.12.0",
    "asyncpg": "0.31.0",
    "burner-redis": "0.1.7",
    "cachetools": "7.1.6",
    "cronsim": "2.7",
    "cyclopts": "4.22.2",
    "dateparser": "1.4.1",
    "fastapi": "0.141.1",
    "httpx": "0.28.1",
    "jinja2": "3.1.6",
    "jsonschema": "4.26.0",
    "pydantic": "2.13.4",
    "pydantic-settings": "2.14.2",
    "pydocket": "0.23.1",
    "redis": "8.1.0",
    "sqlalchemy": "2.0.45",
    "starlette": "1.3.1",
    "uvicorn": "0.52.0",
    "websockets": "16.1.1",
}
"""What its server, worker and schedules rest on, in the versions of uv.lock in Prefect's repository (3.8, August 2026).

The packages of Prefect and Ray hold no lock file; of Ray only the declared ranges are compared."""

_MINOR_IS_A_SERIES = {"sqlalchemy"}
"""Libraries with incompatible changes in minor releases, by their own rules; so has each with major number 0."""

_SHOWN_BY = {
    "asyncpg": ("0.32", "deploy/test_started.py", "test_on_postgres_a_cron_and_an_interval_start_runs"),
    "cyclopts": ("5", "test_deployment.py", "test_deploying_the_same_file_again_changes_nothing"),
    "fastapi": ("0.150", "test_deployment.py", "test_wrong_parameters_are_refused_when_the_run_is_created"),
    "pydocket": ("0.27", "test_schedules.py", "test_on_sqlite_a_cron_and_an_interval_start_runs"),
    "uvicorn": ("0.54", "deploy/test_started.py", "test_the_server_answers_nobody_without_the_password"),
}
"""Libraries of a newer series than Prefect was tested with: that series, and a test of what a user gets from it.

A lock of another series fails here until somebody has named such a test and run it."""


def _pins() -> dict[str, str]:
    text = (CHECKOUT / "requirements.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==([^ ;\n]+)", text, re.MULTILINE))


def _series(name: str, version: str) -> str:
    number = Version(version)
    return f"{number.major}.{number.minor}" if number.major == 0 or name in _MINOR_IS_A_SERIES else str(number.major)


def _of_untested_series(pins: dict[str, str]) -> set[str]:
    return {name for name, tested in _PREFECT_TESTED.items() if _series(name, pins[name]) != _series(name, tested)}


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


def test_a_series_that_prefect_was_not_tested_with_has_a_test_of_its_outcome() -> None:
    pins = _pins()
    assert _of_untested_series(pins) == _SHOWN_BY.keys()
    for name, (series, file, test) in _SHOWN_BY.items():
        assert _series(name, pins[name]) == series, f"{name}: run a test of its outcome with {pins[name]}, and name it"
        assert f"def {test}" in (CHECKOUT / "tests" / file).read_text()


def test_the_sqlalchemy_with_which_no_schedule_fired_is_found() -> None:
    assert _of_untested_series(_pins() | {"sqlalchemy": "2.1.9"}) - _SHOWN_BY.keys() == {"sqlalchemy"}
