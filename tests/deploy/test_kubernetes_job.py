"""The Kubernetes job that Prefect's worker really creates from the work pool's template, as the API server gets it."""

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.runs import CHECKOUT

_PASSWORD = "admin:canary-70f2"
_SUBMIT = """
import asyncio, json, sys, uuid
from prefect.client.schemas.objects import FlowRun
from prefect_kubernetes.worker import KubernetesWorker, KubernetesWorkerJobConfiguration

async def submit():
    template = json.loads(open(sys.argv[1]).read())
    job = await KubernetesWorkerJobConfiguration.from_template_and_values(template, {})
    flow_run = FlowRun(id=uuid.uuid4(), flow_id=uuid.uuid4(), name="nightly")
    job.prepare_for_flow_run(flow_run)
    await KubernetesWorker(work_pool_name="pipeline").run(flow_run, job)

asyncio.run(submit())
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Jobs that the worker has sent to a Kubernetes API on loopback, which refuses each of them."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("/jobs"):
                received.append(json.loads(body))
            self.send_response(403)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "u", "user": {}}],
            "current-context": "x",
        }
        (tmp_path / "config").write_text(json.dumps({"apiVersion": "v1", "kind": "Config"} | config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        monkeypatch.setenv("PREFECT_API_AUTH_STRING", _PASSWORD)
        monkeypatch.setenv("PREFECT_INTEGRATIONS_KUBERNETES_WORKER_CREATE_JOB_RETRY_MAX_RETRIES", "1")
        yield received
        server.shutdown()


@pytest.mark.slow
def test_a_job_has_no_password_in_clear_and_queues_an_evicted_run_again_with_the_settings_of_the_docs(
    jobs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (CHECKOUT / "docs" / "deploy.md").read_text()
    for name, value in re.findall(r"(PREFECT_INTEGRATIONS_KUBERNETES_\w+)=([\w-]+)", text):
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", _SUBMIT, str(CHECKOUT / "deploy" / "kubernetes-work-pool.json")]
    answer = subprocess.run(command, env=os.environ, capture_output=True, text=True)
    assert jobs, answer.stderr[-3000:]
    (container,) = jobs.pop()["spec"]["template"]["spec"]["containers"]
    names = [one["name"] for one in container["env"]]
    assert len(names) == len(set(names))
    env = {one["name"]: one for one in container["env"]}
    reference = {"name": "pipeline-prefect", "key": "auth_string"}
    assert env["PREFECT_API_AUTH_STRING"]["valueFrom"] == {"secretKeyRef": reference}
    assert env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "pipeline-ray"
    assert _PASSWORD not in json.dumps(container)
    assert env["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"]["value"] == "reschedule"
