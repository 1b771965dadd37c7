"""Safeguards of storage that a copy of the code can disable: the history must then show a violation."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tests.runs import CHECKOUT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutation:
    """One protection, and how to switch it off."""

    protection: str
    file: str
    code: str
    """Stands there exactly once."""
    instead: str
    notices: tuple[str, ...]
    """Words of violations, one of which must be reported, so that no other failure is taken for it."""
    storage: Literal["disk", "s3"] = "disk"
    """Where it is looked for."""


_UNTIL_NOTICED = ("--operations=400", "--repeat=20")
"""A history that is checked after a few seconds, and others until one is violated."""

# Which violation a missing protection leads to first depends on how fast the machine is: those of its kind all count.
_OF_A_LEASE = (
    "two took generation",
    "a generation is lower",
    "the lease was taken while",
    "the lease was not seen to be",
    "a lease was renewed that another had taken",
    "a lease was lost that nobody took",
    "a holder was seen",
)
_OF_A_COMMIT = (
    "two manifests of one dataset",
    "a listed file is not the committer's",
    "find must not raise Damaged",
    "read must not raise Damaged",
)
_OF_THE_REGISTRY = ("an appended decision is not in the registry", "must not raise Damaged", "a decision that was read")

MUTATIONS = (
    Mutation(
        protection="a taker looks once more whether its number is the newest",
        file="storage/lease_records.py",
        code="    if any(number > record.generation for number in numbers):",
        instead="    if False:",
        notices=_OF_A_LEASE,
    ),
    Mutation(
        protection="a taker whose number is there already knows its own file by its token",
        file="storage/lease_records.py",
        code="    if not files.create_once(record_uri(folder, record.generation), encoded(record)):\n",
        instead="    files.create_once(record_uri(folder, record.generation), encoded(record))\n    if False:\n",
        notices=_OF_A_LEASE,
    ),
    Mutation(
        protection="a live lease is not taken",
        file="storage/lease.py",
        code="        if newest and newest.is_live(at=looked):\n",
        instead="        if False:\n",
        notices=_OF_A_LEASE,
    ),
    Mutation(
        protection="a lease is renewed by its holder only",
        file="storage/lease.py",
        code="            if lease_records.newest_generation(self._folder) != self.generation:\n",
        instead="            if False:\n",
        notices=_OF_A_LEASE,
    ),
    Mutation(
        protection="the lease of a process that has ended is free",
        file="storage/lease_records.py",
        code=" and not self.process.has_ended()\n",
        instead="\n",
        notices=_OF_A_LEASE,
    ),
    Mutation(
        protection="the newest generation stays, so that numbers only grow",
        file="storage/lease.py",
        code="            self._record = record\n            return not released\n",
        instead=(
            "            self._record = record\n"
            "            if released:\n"
            "                files.remove(lease_records.record_uri(self._folder, self.generation))\n"
            "            return not released\n"
        ),
        notices=_OF_A_LEASE,
    ),
    Mutation(
        protection="of several committers one wins",
        file="storage/commits.py",
        code="        files.create(uri.child(manifest.NAME), content)\n",
        instead="        files.replace(uri.child(manifest.NAME), content)\n",
        notices=_OF_A_COMMIT,
    ),
    Mutation(
        protection="a committer that was not first gets the winner's manifest",
        file="storage/commits.py",
        code="        return manifest.load(uri)\n",
        instead="        pass\n",
        notices=_OF_A_COMMIT,
    ),
    Mutation(
        protection="other bytes have another name",
        file="storage/commits.py",
        code='f"{place.stem}-{digest[: manifest.DIGEST_LENGTH]}{place.suffix}"',
        instead='f"{place.stem}{place.suffix}"',
        notices=_OF_A_COMMIT,
    ),
    Mutation(
        protection="a decision is never replaced",
        file="storage/registry.py",
        code="    if not files.create_once(uri, content):\n",
        instead="    files.replace(uri, content)\n    if False:\n",
        notices=_OF_THE_REGISTRY,
    ),
    Mutation(
        protection="who decided on an older state is told so",
        file="storage/registry.py",
        code="    if not files.create_once(uri, content):\n",
        instead="    files.create_once(uri, content)\n    if False:\n",
        notices=_OF_THE_REGISTRY,
    ),
    Mutation(
        protection="garbage collection keeps what runs use",
        file="storage/admin/gc.py",
        code="                self._needs.keep(record.used(self._root))\n",
        instead="                pass\n",
        notices=("use must not raise",),
    ),
    Mutation(
        protection="S3 is asked to create a file only where none is",
        file="storage/s3.py",
        code=', mode="create"',
        instead="",
        notices=(*_OF_A_LEASE, *_OF_A_COMMIT, *_OF_THE_REGISTRY),
        storage="s3",
    ),
    Mutation(
        protection="passing faults of S3 are tried again",
        file="storage/retry.py",
        code="        return retrying(request)\n",
        instead="        return request()\n",
        notices=("must not raise",),
        storage="s3",
    ),
)


def outcome(mutation: Mutation, folder: Path, *, seed: int = 0) -> tuple[int, str]:
    """Exit code and output of the command line on a copy of storage without the protection."""
    shutil.copytree(CHECKOUT / "storage", folder / "storage", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(CHECKOUT / "tests")
    mutated = folder / mutation.file
    content = mutated.read_text()
    assert content.count(mutation.code) == 1, f"{mutation.file} has no such code once: {mutation.code!r}"
    mutated.write_text(content.replace(mutation.code, mutation.instead))
    options = [f"--seed={seed}", f"--storage={mutation.storage}", *_UNTIL_NOTICED]
    command = [sys.executable, "-m", "tests.concurrency", *options]
    answer = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return answer.returncode, answer.stdout
