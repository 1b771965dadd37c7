"""Preflight checks: a run stops at the first failure; `--check` runs all of them and reports each."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from storage import manifest, terminal
from storage.manifest import Damaged
from storage.terminal import count
from storage.uri import URI, Root
from tasks.learning import recipes, user_code
from tasks.learning.recipes import Recipe
from tasks.resources import capacity, scaling
from tasks.runners import node_checks

if TYPE_CHECKING:
    from tasks.planning.data_summary import Summary
    from tasks.planning.plan import Plan

UNKNOWN: Any = object()
"""Stands for the result of a check that failed or was skipped."""
_T = TypeVar("_T")


class CheckRunner(Protocol):
    """Runs `check` on `inputs` and returns its result; `what` names the check."""

    def __call__(self, what: str, check: Callable[..., _T], *inputs: Any) -> _T: ...


def fail_fast(what: str, check: Callable[..., _T], *inputs: Any) -> _T:
    """Run one check and let its `ValueError` end the run."""
    return check(*inputs)


class CheckReport:
    """Runs checks in turn, prints a line for each, and skips those that depend on a failed one."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._results: list[dict[str, str]] = []

    def __call__(self, what: str, check: Callable[..., Any], *inputs: Any) -> Any:
        """Run and report one check; return its result, or `UNKNOWN` if it failed or was skipped."""
        if any(one is UNKNOWN for one in inputs):
            self._tell(what, "skipped", "depends on a failed check above")
            return UNKNOWN
        try:
            found = check(*inputs)
        except (ValueError, OSError, Damaged) as error:
            self._tell(what, "refused", str(error))
            return UNKNOWN
        self._tell(what, "ok", str(found))
        return found

    def end(self) -> int:
        """Print the JSON results, if requested; return 0 if all checks passed, else 2."""
        if self._as_json:
            print(json.dumps(self._results, indent=1))
        return 0 if all(one["verdict"] == "ok" for one in self._results) else 2

    def _tell(self, what: str, verdict: str, about: str) -> None:
        about = " ".join(about.split())
        self._results.append({"check": what, "verdict": verdict, "about": about})
        if not self._as_json:
            terminal.show(f"{verdict:<8} {what:<8} {about}")


def check_and_plan(arguments: argparse.Namespace, run_check: CheckRunner = fail_fast) -> "Planned":
    """Check a request and plan it; raise `ValueError` if it is invalid.

    `run_check` runs each check: `fail_fast` raises, `CheckReport` reports errors, in which case the result may be
    `UNKNOWN`. The Prefect API is checked later (`temporary_server.check_api`): importing Prefect takes longer than all
    these checks.
    """
    from tasks.planning import make_plan

    asked = run_check("request", _asked, arguments)
    run_check("Ray", lambda asked: capacity.check_workers(arguments.workers, scaling.needs_of(asked.recipe)), asked)
    root = run_check("storage", make_plan.check_root, arguments.storage)
    planned = run_check("data", _planned, arguments, asked, root)
    summary = run_check("classes", Planned.summary, planned)
    if arguments.check:
        run_check("labels", lambda summary: summary.labels, summary)
        run_check("run", Planned.describe, planned)
    run_check("model", lambda planned: _check_model(planned, builds=arguments.check), planned)
    if arguments.check or planned.has_work:
        run_check("disk", capacity.check_disk, root)
        run_check("nodes", lambda root, asked: _nodes(root, arguments.workers, asked), root, asked)
    return planned


def _check_model(planned: "Planned", *, builds: bool) -> str:
    """Check what the training needs; build the model if it `builds` or if it is the user's own."""
    from tasks.planning import make_plan, model_check

    plan = planned.plan
    make_plan.check_training(plan)
    if not builds and not (planned.has_work and user_code.is_reference(plan.recipe.model)):
        return plan.recipe.model
    description, warning = model_check.check_model(plan)
    if warning:
        terminal.show(f"WARNING: {warning}", sys.stderr)
    return description


def _nodes(root: Root, workers: scaling.Workers, asked: "Asked") -> str:
    return node_checks.check_nodes(root, workers, scaling.needs_of(asked.recipe))


@dataclasses.dataclass(frozen=True)
class Asked:
    """The request as far as it is known without access to storage."""

    base: Recipe
    """The recipe before `--set` changed it."""
    recipe: Recipe
    addresses: tuple[str, ...]
    """Mirrors to try before the data set's own."""
    sample: bool
    """True with `--source sample`."""

    def __str__(self) -> str:
        changed = [f"{name}={value}" for name, value in recipes.changes(self.recipe).items()]
        return f"recipe {self.recipe.name}" + (f" with {', '.join(changed)}" if changed else "")


def _asked(arguments: argparse.Namespace) -> Asked:
    from tasks.learning import downloading
    from tasks.planning import data_option, make_plan

    base = recipes.load(data_option.default_recipe(arguments.data) if arguments.recipe is None else arguments.recipe)
    recipe = recipes.override(base, arguments.settings)
    make_plan.check_workers(arguments.workers)
    mirrors = [source for source in arguments.source if source != "sample"]
    addresses = tuple(map(downloading.mirror_address, mirrors))
    sample = len(mirrors) < len(arguments.source)
    if sample and (arguments.no_sample or mirrors):
        raise ValueError("--source sample cannot be combined with another --source or with --no-sample")
    if arguments.data == "":
        raise ValueError(
            "--data must be a folder or the URI of a raw dataset, got an empty value; omit it to "
            "download the recipe's data set"
        )
    if arguments.data and arguments.source:
        raise ValueError("--data cannot be combined with --source, because nothing is downloaded")
    return Asked(base, recipe, addresses, sample)


@dataclasses.dataclass(frozen=True)
class Planned:
    """A checked run: its plan and the parameters of its flow."""

    plan: "Plan"
    request: dict[str, Any]
    """Parameters of the flow."""
    about: str
    """Origin of the data, in words."""

    def __str__(self) -> str:
        return self.about

    def describe(self) -> str:
        """Describe the run: its recipe, data, number of epochs, and the stages to do."""
        from tasks.planning import make_plan

        made, recipe, again = self.plan, self.plan.recipe, self.request["refresh"]
        results: dict[str, URI | None] = {"download": made.files} if self.downloads or again else {}
        results |= {"ingest": made.raw} if made.data is None else {}
        results |= {"preprocess": made.prepared, "train": made.checkpoint}
        results |= {"predict": made.predictions, "evaluate": made.evaluation}
        to_do = [stage for stage, uri in results.items() if uri and (again or not manifest.is_committed(uri))]
        stages = f"to do: {', '.join(to_do)}" if to_do else "all results exist and will be reused"
        hint = make_plan.batch_hint(made) if "train" in to_do else None
        stages += f"; WARNING: {hint}" if hint else ""
        return f"{recipe.name} on {made.data_name}, {count(recipe.training.epochs, 'epoch')}; {stages}"

    def summary(self) -> "Summary":
        """Summarize the classes and labels; raise `ValueError` if the labels cannot be used."""
        from tasks.planning import data_summary

        return data_summary.of_plan(self.plan)

    @property
    def downloads(self) -> bool:
        """True if the run fetches a data set from a mirror."""
        made = (self.plan.raw, self.plan.files)
        return self.plan.source_uri is None and not any(uri and manifest.is_committed(uri) for uri in made)

    @property
    def uses_network(self) -> bool:
        """True if the run downloads a data set and its first mirror is not a folder."""
        if not self.downloads:
            return False
        mirrors = [*self.request["mirror"], *self.plan.source.mirrors]
        return bool(mirrors) and not mirrors[0].startswith("file:")

    @property
    def has_work(self) -> bool:
        """True if a stage that can use Ray has to run."""
        return bool(self.request["refresh"] or self.plan.needs_ray())

    @property
    def needs_ray(self) -> bool:
        """True if the run starts or uses Ray."""
        return self.request["workers"] != 0 and self.has_work


def _planned(arguments: argparse.Namespace, asked: Asked, root: Root) -> Planned:
    """Plan the request; fall back to the bundled sample if no mirror can be reached and the request allows it."""
    from tasks.learning import downloading

    is_sample = asked.sample and asked.base.fallback is not None
    recipe = _sample_of(asked, arguments) if is_sample else asked.recipe
    made = _plan(arguments, recipe, root, registered_model=arguments.championship)
    if asked.sample and asked.base.fallback is None and made.source.notice is None:
        raise ValueError(f"--source: recipe {asked.base.name!r} has no sample; omit --source sample")
    there = next((uri for uri in (made.raw, made.files) if uri and manifest.is_committed(uri)), None)
    unreachable = not (there or made.user_images or asked.sample or downloading.reachable(made.source, asked.addresses))
    may_fall_back = asked.base.fallback is not None and not asked.addresses and not arguments.no_sample
    waits = unreachable and arguments.patience > 0
    if unreachable and not may_fall_back and not waits:
        raise ValueError(downloading.unreachable_message(made.source, asked.addresses))
    if made.user_images:
        noted = [*made.user_images.left_out, *made.user_images.notes]
        about = "; ".join([f"{len(made.user_images.files):,} files in {made.user_images.uri}", *map(str, noted)])
    elif waits:
        about = f"no mirror of {made.source.name} responds; the run will retry for {arguments.patience:g} minutes"
    else:
        about = f"{there} exists" if there else f"a mirror of {made.source.name} responds"
    if unreachable and not waits:
        # The user did not ask for the sample in the named championship, so it competes in its own.
        is_sample, made = True, _plan(arguments, _sample_of(asked, arguments), root, registered_model=None)
        told = "no mirror of the data set can be reached; using the bundled sample instead"
        told += f", in its championship {made.registered_model}" if arguments.championship else ""
        told += "; use --source FOLDER to read files that you have, or --no-sample to fail instead"
        terminal.show(told, sys.stderr)
    parameters = request(arguments, made.recipe, storage=str(made.root), data=made.source_uri)
    parameters |= {"mirror": list(asked.addresses), "refresh": arguments.refresh}
    parameters |= {"register_as": made.register_as, "download_timeout": f"{arguments.patience}m"}
    return Planned(made, parameters, "the bundled sample" if is_sample else about)


def _sample_of(asked: Asked, arguments: argparse.Namespace) -> Recipe:
    assert asked.base.fallback is not None
    return recipes.override(recipes.load(asked.base.fallback), arguments.settings)


def _plan(arguments: argparse.Namespace, recipe: Recipe, root: Root, *, registered_model: str | None) -> "Plan":
    from tasks.planning import make_plan

    return make_plan.make_plan(
        storage=root,
        recipe=recipe,
        workers=arguments.workers,
        data=arguments.data,
        registered_model=registered_model,
        stage_timeout_s=arguments.deadline * 60,
        stall_timeout_s=arguments.stall * 60,
        download_timeout_s=arguments.patience * 60,
    )


def request(arguments: argparse.Namespace, recipe: Recipe, *, storage: str, data: str | None) -> dict[str, Any]:
    """Return the flow parameters that the pipeline's and the backfill's command lines share."""
    return {
        "recipe": recipe.origin or recipe.name,
        "storage": storage,
        "data": data and str(data),
        "workers": arguments.workers,
        "settings": recipes.changes(recipe),
        "register_as": arguments.championship,
        "stage_timeout": f"{arguments.deadline}m",
        "stall_timeout": f"{arguments.stall}m",
    }
