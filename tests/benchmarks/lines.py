"""The lines of the table, in the order in which they are measured."""

from collections.abc import Callable, Iterator

from tests.benchmarks import stages, wholes
from tests.benchmarks.bench import Bench
from tests.benchmarks.ratios import Ratio

LINES: dict[str, Callable[[Bench], Iterator[Ratio]]] = {
    "ingest": stages.ingest,
    "training": stages.training,
    "ray-data": stages.ray_data,
    "encoded": stages.encoded,
    "notebook": stages.notebook,
    "ddp": stages.ddp,
    "prediction": stages.prediction,
    "orchestration": wholes.orchestration,
    "whole": wholes.whole,
    "growth": wholes.growth,
}
FULL_ONLY = {"notebook", "orchestration"}
"""Left out to be quick, unless asked for by name: of less than a minute's work they say nothing."""
