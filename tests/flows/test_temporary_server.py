"""The temporary Prefect server of a run serves only that run."""

import urllib.error
import urllib.request
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings


def test_the_temporary_server_of_a_run_asks_for_a_password(prefect_process: dict[Any, Any]) -> None:
    url = prefect_process[PREFECT_API_URL]
    assert url.startswith("http://127.0.0.1:")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/admin/version", timeout=10)
    with temporary_settings(prefect_process), get_client(sync_client=True) as client:
        assert client.api_version()
