"""Targets of the installed console commands: each checks its command line before it imports the flow."""

from typing import Any

from flows.cli import main


def pipeline() -> int:
    """Run `mnist-pipeline`."""

    def flow_of(request: dict[str, Any]) -> Any:
        from flows import pipeline

        return pipeline.flow_of(request)

    return main.main(flow_of)


def predict() -> int:
    """Run `mnist-predict`."""

    def flow_of(request: dict[str, Any]) -> Any:
        from flows.predict import predict

        return predict

    return main.main_predict(flow_of)
