"""`data-to-model`, also `python -m flows`: the flows, their servers and what `python -m storage` does, as commands."""

from typing import TYPE_CHECKING, Any

from flows.cli import app
from storage.__main__ import app as storage_app

if TYPE_CHECKING:
    from prefect import Flow


def flow_of(request: dict[str, Any], plan: Any = None) -> "Flow[..., Any]":
    """Return the flow for `request`, the parameters of a run: that of a training, or that of a prediction."""
    if "recipe" not in request:
        from flows import predict

        return predict.flow_of(plan)
    from flows import pipeline

    return pipeline.flow_of(request, plan)


def main() -> int:
    """Run the command that the command line names; return its exit code."""
    return app.main(flow_of, more=storage_app)


if __name__ == "__main__":
    raise SystemExit(main())
