"""The ingest arms: the same images written as parts of a dataset, and by plain pyarrow."""

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from storage.uri import DatasetURI
from tasks.jobs.ingest.downloads import write_split
from tasks.learning import images
from tests.benchmarks import data
from tests.benchmarks.arm import serve


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ingest", description=__doc__)
    parser.add_argument("--mirror", required=True)
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    source, split = data.of(options.mirror), data.tiled(data.load(options.mirror)["train"], options.times)
    rows = len(split.labels)

    def ours() -> int:
        write_split(source, DatasetURI(str(options.out / "ours-000000000000")), split)
        return rows

    def plain() -> int:
        table = images.to_table(split.labels, np.asarray(split.images), split.labels, classes=source.classes)
        pq.write_table(table, options.out / "plain.parquet", compression="zstd", use_dictionary=["id", "label"])
        return rows

    def timed(write: Callable[[], int]) -> dict[str, float]:
        shutil.rmtree(options.out, ignore_errors=True)
        options.out.mkdir()
        started = time.perf_counter()
        written = write()
        return {"seconds": time.perf_counter() - started, "rows": float(written)}

    serve({"ours": lambda: timed(ours), "plain": lambda: timed(plain)})


if __name__ == "__main__":
    main()
