"""The short form of the fault suite; `make faults` injects every kind."""

from collections.abc import Iterator

import pytest

from tests.faults import harness
from tests.faults.case import carry_out
from tests.faults.harness import Harness
from tests.faults.kinds import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with harness.prepared(tmp_path_factory.mktemp("faults")) as prepared:
        yield prepared


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.is_quick])
def test_a_run_survives_the_fault(prepared: Harness, name: str) -> None:
    outcome = carry_out(prepared, name, KINDS[name].scenario, seed=0)
    assert outcome.survived, outcome.problem
