"""deploy/Dockerfile builds one small image from what is locked, which runs without root."""

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from tests.deploy import image
from tests.runs import CHECKOUT

_BUILD, _IMAGE = image.stages()
_LOCKED = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (CHECKOUT / "requirements.lock").read_text(), re.MULTILINE))


def _runs(stage: list[tuple[str, str]]) -> str:
    return "\n".join(words for name, words in stage if name == "RUN")


def test_every_file_that_is_copied_exists_is_tracked_and_is_let_through_to_the_build() -> None:
    let_through = (image.DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    for sources, _ in [*image.copied(_BUILD), *image.copied(_IMAGE)]:
        for source in sources:
            assert subprocess.run(["git", "ls-files", "--error-unmatch", source], cwd=CHECKOUT).returncode == 0
            assert f"!{source}" in let_through
    allowed = {line[1:] for line in let_through if line.startswith("!")}
    assert "*" in let_through and allowed == {source for sources, _ in image.copied(_IMAGE) for source in sources}


def test_the_image_ends_as_a_user_without_rights_who_owns_nothing_in_it() -> None:
    users = [words for name, words in _IMAGE if name == "USER"]
    assert users == ["1000:1000"]
    assert "useradd --uid 1000" in _runs(_IMAGE)
    assert not any("--chown" in words for name, words in _IMAGE if name == "COPY")
    assert _IMAGE.index(("USER", users[0])) > max(number for number, (name, _) in enumerate(_IMAGE) if name == "COPY")


def test_the_build_fails_for_a_package_that_is_not_locked(tmp_path: Path) -> None:
    check = next(line for line in _runs(_BUILD).splitlines() if "locked" in line)
    check = check.replace("uv pip freeze --python /opt/venv", "cat frozen").replace("$TORCH", "cpu")
    _write_lock(tmp_path)
    for frozen, code in [("numpy==2.4.6\npytz==2026.6\ntorch==2.14.1+cpu\n", 0), ("numpy==2.4.6\nnumba==0.1\n", 1)]:
        (tmp_path / "frozen").write_text(frozen)
        assert subprocess.run(["sh", "-c", check], cwd=tmp_path).returncode == code


def test_every_locked_hash_counts_in_the_build_except_those_of_torch_for_cpus(tmp_path: Path) -> None:
    change = next(line for line in _runs(_BUILD).splitlines() if "sed -i" in line)
    for torch, hashed in [("cuda", {"numpy", "torch", "torchvision", "pytz"}), ("cpu", {"numpy", "pytz"})]:
        _write_lock(tmp_path)
        subprocess.run(["sh", "-c", change], cwd=tmp_path, env=os.environ | {"TORCH": torch}, check=True)
        lock = (tmp_path / "requirements.lock").read_text().replace("\\\n", "").splitlines()
        assert {line.partition("==")[0] for line in lock if "--hash=" in line} == hashed
        assert len(lock) == 4


def _write_lock(folder: Path) -> None:
    pins = ("numpy==2.4.6", "torch==2.14.1", "torchvision==0.29.1", "pytz==2026.6 ; sys_platform == 'linux'")
    hashes = " \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\n"
    (folder / "requirements.lock").write_text("".join(pin + hashes for pin in pins))


def test_the_volume_of_the_documented_command_belongs_to_the_user() -> None:
    (place,) = re.findall(r"docker run .*-v results:(\S+) ", (CHECKOUT / "docs/deploy.md").read_text())
    assert f"install -d -o 1000 -g 1000 {place}" in _runs(_IMAGE)


def test_the_image_has_the_python_of_the_project_and_writes_only_below_tmp() -> None:
    (version,) = [words for name, words in _BUILD if name == "ARG" and words.startswith("PYTHON=")]
    workflow = yaml.safe_load((CHECKOUT / ".github/workflows/ci.yml").read_text())
    assert version == f"PYTHON={workflow['jobs']['run']['steps'][1]['with']['python-version']}"
    told = image.variables()
    assert told["PATH"].startswith("/opt/venv/bin:")
    assert told["HOME"] == "/tmp" and told["PREFECT_HOME"].startswith("/tmp/")
    assert told["PREFECT_SERVER_UI_STATIC_DIRECTORY"].startswith("/tmp/"), "else the server has no UI"
    assert ("WORKDIR", told["PIPELINE_CHECKOUT"]) in _IMAGE


def test_what_the_image_holds_of_the_checkout_is_enough_for_the_command_that_messages_name(tmp_path: Path) -> None:
    folder = image.assemble(tmp_path / "pipeline")
    (install,) = [words for name, words in _IMAGE if name == "RUN" and "data-to-model" in words]
    (tmp_path / "bin").mkdir()
    install = install.replace("/opt/venv/bin", str(tmp_path / "bin")).replace("/opt/pipeline", str(folder))
    subprocess.run(["sh", "-c", install], check=True)
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [str(tmp_path / "bin" / "data-to-model"), "gc", "--help"]
    shown = subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True).stdout
    assert "data-to-model gc" in shown
    declared = yaml.safe_load((folder / "prefect.yaml").read_text())["deployments"]
    assert all((folder / one["entrypoint"].partition(":")[0]).exists() for one in declared)
