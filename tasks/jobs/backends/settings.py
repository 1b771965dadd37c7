"""Settings of Ray Data in the process of a job."""

import logging

import ray.data

from tasks.jobs.backends import tuned

_SHUFFLED_AT_ONCE = 2**25
"""Bytes of rows that a local Ray collects before it compresses and sends them; Ray's default is 1 GiB."""


def configure(*, max_cpus: int | None) -> None:
    """Make Ray Data keep the order of rows, and print no progress bars or plans between the job's own lines.

    `max_cpus` is for a local Ray: it runs no more tasks at once than it has cores.
    """
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.raise_original_map_exception = True  # else a worker's error arrives without its type and message
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    if not max_cpus:
        return
    context.execution_options.resource_limits = context.execution_options.resource_limits.copy(cpu=max_cpus)
    context.shuffle_input_batch_bytes = _SHUFFLED_AT_ONCE
    if tuned.is_on(max_cpus):
        from tasks.jobs.backends.tuned import data

        data.configure()
