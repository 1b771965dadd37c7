"""The temporary Prefect server of a run serves only that run."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings

from flows.server.temporary_server import own_server
from tests.runs import prefect_home


def test_the_temporary_server_of_a_run_asks_for_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefect_home(tmp_path / "prefect")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with own_server():
        url = str(get_current_settings().api.url)
        assert url.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/admin/version", timeout=10)
        with get_client(sync_client=True) as client:
            assert client.read_flows() == []
