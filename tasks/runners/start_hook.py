"""Hook of `ray start`, which RAY_START_HOOK names: what it has no option for. The pipeline never calls it itself."""

from typing import Any


def without_client_server(parameters: Any, _: bool) -> None:
    """Start no server for `ray://` addresses: nobody uses it, and it cannot start from a folder with spaces."""
    parameters.ray_client_server_port = None
