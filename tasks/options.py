"""How Prefect treats our tasks and flows: storage says what is done already, and no result is ever pickled."""

from typing import Any

from prefect.cache_policies import NO_CACHE

as_json: dict[str, Any] = {"result_serializer": "json"}
"""Options of a flow: its summary is kept as JSON."""
task_options: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False, **as_json}
"""Options of every task: what it returns is a URI to what it committed, and need not be kept."""
