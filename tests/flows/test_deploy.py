"""What is wrong with prefect.yaml is refused by name before a server is asked for anything."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.server import deploy
from tests.runs import CHECKOUT


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tags": []}, "needs the tag 'mnist-pipeline'"),
        ({"schedules": [{"cron": "0 3 * * *"}]}, "every schedule needs a slug"),
        ({"schedules": [{"slug": "odd", "cron": "at three"}]}, "schedule 'odd' cannot be read"),
        ({"work_pool": None}, "needs work_pool"),
    ],
)
def test_a_wrong_file_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: str
) -> None:
    content = yaml.safe_load((CHECKOUT / "prefect.yaml").read_text())
    changed = content["deployments"][0] | change
    content["deployments"][0] = {name: value for name, value in changed.items() if value is not None}
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(deploy, "CHECKOUT", tmp_path)
    with pytest.raises(ValueError, match=named):
        deploy.declared()
