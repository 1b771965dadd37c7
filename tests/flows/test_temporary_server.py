"""The temporary Prefect server of a run serves only that run."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from docket import Worker
from prefect.client.orchestration import get_client
from prefect.server.api import background_workers
from prefect.settings import get_current_settings

from flows.server.temporary_server import own_server


def test_the_temporary_server_of_a_run_asks_for_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with own_server():
        url = str(get_current_settings().api.url)
        assert url.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/admin/version", timeout=10)
        with get_client(sync_client=True) as client:
            assert client.read_flows() == []


def test_prefect_takes_the_worker_of_its_own_chores_from_where_ours_replaces_it() -> None:
    assert background_workers.Worker is Worker  # type: ignore[attr-defined]
    assert "Worker" in background_workers.background_worker.__wrapped__.__code__.co_names  # type: ignore[attr-defined]
