"""The short form of the fault suite (`make faults` injects every kind), its plan, and the injection of one fault."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import harness, injection
from tests.faults.__main__ import make_plan, parser
from tests.faults.case import carry_out
from tests.faults.harness import Harness
from tests.faults.history import History
from tests.faults.kinds import KINDS
from tests.runs import CHECKOUT


def test_the_same_seed_gives_the_same_plan_and_each_kind_is_in_it() -> None:
    plans = [make_plan(parser().parse_args(["--seed", "7", "--count", "100"])) for _ in range(2)]
    assert plans[0] == plans[1]
    assert {name for name, _ in plans[0]} == set(KINDS) and len(plans[0]) == 100


@pytest.mark.usefixtures("integration")
def test_a_fault_is_injected_into_one_process_and_all_failpoints_are_recorded(tmp_path: Path) -> None:
    fault = injection.fault("write", "/part", skip=1, action="raise", once=tmp_path / "once")
    program = (
        "from storage.failpoints import failpoint; "
        "[failpoint('write', f'/part-{n}') for n in range(3)]; raise SystemExit(3)"
    )
    env = os.environ | injection.environment(tmp_path / "history", fault)
    codes = [subprocess.run([sys.executable, "-c", program], env=env, cwd=CHECKOUT).returncode for _ in range(2)]
    assert codes == [1, 3]  # the first is struck at its second match, the second not at all
    events = list(History(tmp_path / "history").events())
    assert [event["at"] for event in events if "struck" not in event] == [f"/part-{n}" for n in (0, 1, 0, 1, 2)]
    assert [event["at"] for event in events if "struck" in event] == ["/part-1"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with harness.prepared(tmp_path_factory.mktemp("faults")) as prepared:
        yield prepared


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.is_quick])
def test_a_run_survives_the_fault(prepared: Harness, name: str) -> None:
    outcome = carry_out(prepared, name, KINDS[name].scenario, seed=0)
    assert outcome.survived, outcome.problem
