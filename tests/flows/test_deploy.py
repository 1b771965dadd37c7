"""An invalid deployment is refused by name before a server is contacted."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.server import deploy
from tests.runs import CHECKOUT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tags": []}, "needs the tag 'data-to-model'"),
        ({"work_pool": None, "entrypoint": None}, "needs entrypoint"),
        ({"work_pool": "pipeline"}, "work_pool must be a valid dictionary, got 'pipeline'"),
        ({"work_pool": {"nam": "pipeline"}}, "work_pool: there is no 'nam'; did you mean 'name'"),
        ({"entrypoint": "flows/pipeline.py:mnst"}, "entrypoint: .*'mnst' not found"),
        ({"paramters": {}}, "there is no 'paramters'; did you mean 'parameters'"),
        ({"parameters": {"settings": {"epoch": 1}}}, "no recipe field 'epoch'; did you mean 'epochs'"),
        ({"parameters": {"workers": "2"}}, "workers must be a valid integer, got '2'"),
        ({"parameters": {"recipes": "mnist"}}, "parameters: there is no 'recipes'; did you mean 'recipe'"),
        ({"parameters": {"workers": -1}}, "workers must be >= 0"),
        ({"schedules": [3]}, "schedules: each must be a dict, got 3"),
        ({"schedules": [{"cron": "0 3 * * *", "parameters": 3}]}, "parameters must be a valid dictionary, got 3"),
        ({"schedules": [{"crom": "0 3 * * *"}]}, "schedules: there is no 'crom'; did you mean 'cron'"),
        ({"schedules": [{"cron": "0 25 * * *"}]}, 'schedules: Invalid cron string: "0 25'),
        (
            {"entrypoint": "flows/pipeline.py:images", "parameters": {"data": "/photoz"}},
            "data: nothing exists at /photoz",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    content = yaml.safe_load((CHECKOUT / "prefect.yaml").read_text())
    changed = content["deployments"][0] | change
    content["deployments"][0] = {name: value for name, value in changed.items() if value is not None}
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.setattr(deploy, "CHECKOUT", tmp_path)
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(ValueError, match=message) as refused,
    ):
        deploy.read()
    assert str(refused.value).startswith("prefect.yaml: deployment 'train'") and "\n" not in str(refused.value)


def test_deployments_of_ones_own_in_a_second_file_need_only_what_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prefect.yaml").write_bytes((CHECKOUT / "prefect.yaml").read_bytes())
    monkeypatch.setattr(deploy, "CHECKOUT", tmp_path)
    own = tmp_path / "deployments.yaml"
    photos = "{name: photos, entrypoint: 'flows/pipeline.py:images', parameters: {data: photos-1d9802c1c0d9}}"
    own.write_text(f"deployments: [{photos}]\n")
    assert subprocess.run(["git", "check-ignore", "-q", own.name], cwd=CHECKOUT).returncode == 0
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        *usual, own_entry = deploy.read()
    assert [entry["name"] for entry in usual] == ["train", "smoke", "train", "train", "batch"]
    assert own_entry.keys() - {"parameters"} == usual[-1].keys() - {"description", "parameters"}
    own.write_text("photos\n", encoding="utf-16")
    with pytest.raises(ValueError, match=r"^deployments\.yaml: no deployments can be read: "):
        deploy.read()
