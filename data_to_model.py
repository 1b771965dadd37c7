"""The installed command `data-to-model`, and its commands for Python: `import data_to_model as d2m`.

Those that compute do so in a child process, which ends with this one: signal handlers, logging, event loop, threads and
GPU memory stay the caller's.
"""

import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

_HERE = str(Path(__file__).resolve().parent)
sys.path.insert(0, _HERE)  # before others' packages of these names, which PYTHONPATH may have
for _name in ("storage", "tasks", "flows"):
    _file = import_module(_name).__file__ or "a folder without __init__.py"
    if not os.path.realpath(_file).startswith(f"{_HERE}{os.sep}{_name}{os.sep}"):
        raise ImportError(f"the name {_name!r} is taken by {_file}: import data_to_model in another process")
sys.path.remove(_HERE)

from pydantic import BaseModel, Field

from flows.__main__ import main
from flows.cli import commands
from flows.cli.options import StorageOptions
from storage import champions, exits, kinds
from storage.decision import Decision
from storage.manifest import JSON
from storage.uri import URI, parse_root
from tasks.runners.child import Child

if TYPE_CHECKING:
    import pandas as pd

    from tasks.learning.inference import Model

__all__ = ["Audit", "Diff", "Prediction", "Run", "audit", "champion", "diff", "load", "main", "predict", "run"]

_POSITIONAL = ("data", "a", "b")
_POLL_S, _GRACE_S = 0.1, 10.0


class _Result(BaseModel, frozen=True):
    document: JSON = Field(repr=False)
    """All that the command prints with `--json`."""


class Run(_Result, frozen=True):
    """A run: its results, and what became of the model; `page` is the report, to be opened in a browser."""

    files: kinds.FilesURI | None
    raw: kinds.DatasetURI
    prepared: kinds.DatasetURI
    checkpoint: kinds.CheckpointURI
    predictions: kinds.PredictionsURI
    evaluation: kinds.EvaluationURI
    report: kinds.ReportURI
    registered_model: str
    verdict: str
    reason: str
    champion: kinds.CheckpointURI | None

    @property
    def page(self) -> URI:
        return self.report.child("index.html")

    @property
    def metrics(self) -> "pd.DataFrame":
        """Metrics on the test rows, as one row with the model's name: rows of several can be concatenated."""
        numbers = {name: each for name, each in self.document["metrics"].items() if isinstance(each, int | float)}
        return _frame([numbers]).set_axis([self.checkpoint.name])


class Prediction(_Result, frozen=True):
    """Predictions, by a model; `predicted` are the numbers of images by class."""

    predictions: kinds.PredictionsURI
    checkpoint: kinds.CheckpointURI
    dataset: kinds.DatasetURI
    predicted: dict[str, int]

    @property
    def table(self) -> "pd.DataFrame":
        """A row for each image."""
        import pandas as pd

        from storage import tables

        return tables.read_split(self.predictions).to_pandas(types_mapper=pd.ArrowDtype)  # type: ignore[no-any-return]


class Audit(_Result, frozen=True):
    """Probably wrong labels; `page` shows them, to be opened in a browser."""

    raw: kinds.DatasetURI
    audit: kinds.AuditURI
    rows: int

    @property
    def page(self) -> URI:
        return self.audit.child("index.html")

    @property
    def suspects(self) -> "pd.DataFrame":
        """A row for each suspect, worst first."""
        return _frame(self.document["suspects"])


class Diff(_Result, frozen=True):
    """What is different: a line for each of `changes`; `notes` say what cannot be compared, and why."""

    changes: list[str]
    notes: dict[str, str]
    test_rows: JSON | None = Field(repr=False)

    @property
    def metrics(self) -> "pd.DataFrame":
        """A row for each metric, on the test rows that both models predicted."""
        return _frame((self.test_rows or {"metrics": {}})["metrics"]).T


def _frame(rows: Any) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(rows)


_R = TypeVar("_R", bound=_Result)


def _command(options: type[StorageOptions], result: type[_R], *arguments: str) -> Callable[..., _R]:
    """Return a command as a function: fields of its `options` are parameters, those in `arguments` have no option."""
    name, types, kind = options.runs.rpartition(":")[2], get_type_hints(options), inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("verbose", kind, default=False, annotation=bool)]
    for each in inspect.signature(options).parameters.values():
        if each.name not in ("as_json", "check"):
            how = each.POSITIONAL_OR_KEYWORD if each.name in _POSITIONAL else kind
            parameters.append(each.replace(annotation=types[each.name], kind=how))
    signature = inspect.Signature(sorted(parameters, key=lambda each: each.kind), return_annotation=result)

    def call(*values: object, **named: object) -> _R:
        given = signature.bind(*values, **named).arguments
        is_verbose, subjects = bool(given.pop("verbose", False)), [str(given.pop(each)) for each in arguments]
        document = _answer(name, "--json", *_words(given), "--", *subjects, is_verbose=is_verbose)
        return result.model_validate(document | document.get("uris", {}) | {"document": document})

    call.__name__, call.__qualname__, call.__doc__ = name, name, options.__doc__
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a command line for options by the names of their fields."""
    for name, value in options.items():
        option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
        values = [f"{field}={each}" for field, each in value.items()] if isinstance(value, Mapping) else value
        for each in values if isinstance(values, list | tuple) else [values]:
            if each is not None and each is not False:
                yield option if each is True else f"{option}={each}"


def _answer(*words: str, is_verbose: bool) -> JSON:
    """Run a command and return the document that it prints.

    An invalid request is a `ValueError`, other failures are a `RuntimeError`, both in the command's words.
    """
    with tempfile.TemporaryFile() as output:
        command, is_running = [sys.executable, "-P", __file__, *words], True
        child = Child(command, env=os.environ, cwd=Path.cwd(), grace_s=_GRACE_S, stdout=output)
        try:
            while is_running:
                is_running = child.running  # asked before the last output is read
                if is_verbose:
                    print(child.new_output(), end="", file=sys.stderr, flush=True)
                time.sleep(_POLL_S)
            errors = child.output()
        finally:
            child.end()
        if child.exit_code:
            message = f"\n{errors}".rpartition("\nerror: ")[2].strip()
            raise (ValueError if child.exit_code == exits.INVALID else RuntimeError)(message)
        output.seek(0)
        document: JSON = json.load(output)
        return document


run = _command(commands.RunOptions, Run)
predict = _command(commands.PredictOptions, Prediction)
audit = _command(commands.AuditOptions, Audit, "data")
diff = _command(commands.DiffOptions, Diff, "a", "b")


def champion(registered_model: str = "", *, storage: str | None = None) -> Decision:
    """Return the decision that made the current champion, by default the only one; its `champion` is the model.

    Raises `ValueError` if there is no such champion, or there are several; the message lists them.
    """
    root = parse_root(storage or os.environ.get("PIPELINE_STORAGE") or "./data", option="storage")
    name = registered_model.removeprefix("champion:")
    champions.require_champion(root, name)
    return champions.promotion_stack(champions.decisions(root, name or champions.usual(root)))[-1]


def load(model: str = "champion", *, storage: str | None = None) -> "Model":
    """Load a model into this process: a `torch.nn.Module` from images to probabilities."""
    from tasks.learning import inference

    return inference.load(model, storage=storage)


if __name__ == "__main__":
    raise SystemExit(main())
