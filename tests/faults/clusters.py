"""The runs of a case on a cluster of two nodes."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests import clusters
from tests.clusters import TwoNodes

if TYPE_CHECKING:
    from tests.faults.case import Case


@contextlib.contextmanager
def two_nodes(case: "Case") -> Iterator[TwoNodes]:
    """A cluster that the case's runs use for as long as the block lasts; in the end nobody holds any of it."""
    env = os.environ | case.harness.environment(case.root) | case.harness.injection_env(None)
    with clusters.two_nodes(env) as cluster:
        case.env = cluster.env
        yield cluster
        case.until(lambda: cluster.used_cpus() == 0, "no CPU was held", interval_s=1, limit_s=60)
