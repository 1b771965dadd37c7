"""Two killed machines carry out one run, on a disk and on S3: `python -m tests.concurrency --rounds 20`."""

import argparse
import os
import random
import tempfile
from pathlib import Path

from storage.uri import Root
from tests import s3
from tests.concurrency import two_machines


def main() -> None:
    """Play the rounds; print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.concurrency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="on each storage")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="machines-") as name, s3.serve(Path(name, "s3")) as server:
        os.environ.update(server.environment())
        for storage in ("disk", "s3"):
            for number in range(1, rounds + 1):
                root = Root(f"s3://{server.bucket}/{number}" if storage == "s3" else f"{name}/root-{number}")
                folder, chance = Path(name, f"{storage}-{number}"), random.Random(f"{storage} {number}")
                events = two_machines.play(root, folder, chance=chance)
                print(f"{storage} {number}: {', '.join(events)}", flush=True)


if __name__ == "__main__":
    main()
