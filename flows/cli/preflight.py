"""Checks before a run starts: a run stops at the first failure; `--check` runs all of them and reports each."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from flows.cli.options import PredictOptions, RunOptions
from storage import exits, manifest, terminal
from storage.manifest import Damaged
from storage.terminal import count
from storage.uri import URI, Root, check_name
from tasks.learning import recipes, user_code
from tasks.learning.recipes import Recipe
from tasks.planning.durations import parse_duration
from tasks.resources import capacity, machine, scaling
from tasks.resources.scaling import ANY, Needs, Workers
from tasks.runners.nodes import check_nodes

if TYPE_CHECKING:
    from tasks.planning.data_summary import Summary
    from tasks.planning.plan import Plan
    from tasks.planning.predict_request import BatchRequest


class Preflight:
    """A request and what its checks have found out; each check returns, in words, what it found."""

    recipe: Recipe
    needs: Needs
    mirrors: list[str]
    """Addresses of the mirrors to try before the source's own."""
    root: Root
    plan: "Plan"
    summary: "Summary"

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.origin = ""
        """Where the data comes from, in words."""

    def check_request(self) -> str:
        """Check everything that is known without access to storage."""
        from tasks.learning import downloading
        from tasks.planning import data_option, make_plan

        options = self.options
        name = data_option.default_recipe(options.data) if options.recipe is None else options.recipe
        self.recipe = recipes.override(recipes.load(name), options.settings)
        self.needs = scaling.needs_of(self.recipe)
        machine.choose(options.cores)
        make_plan.check_workers(options.workers)
        for name in ("stage_timeout", "stall_timeout"):
            parse_duration(getattr(options, name), option=f"--{name.replace('_', '-')}")
        if options.register_as:
            check_name(options.register_as, field="--register-as")
        self.mirrors = list(map(downloading.mirror_address, options.mirror))
        if options.data == "":
            hint = "omit it to download the recipe's data set"
            raise ValueError(f"--data must be a folder or the URI of a raw dataset, got an empty value; {hint}")
        if options.data and options.mirror:
            raise ValueError("--data cannot be combined with --mirror, because nothing is downloaded")
        changed = [f"{name}={value}" for name, value in recipes.changes(self.recipe).items()]
        return f"recipe {self.recipe.name}" + (f" with {', '.join(changed)}" if changed else "")

    def check_storage(self) -> str:
        """Check that results can be written."""
        from tasks.planning import make_plan

        self.root = make_plan.check_root(self.options.storage)
        return self.root

    def check_data(self) -> str:
        """Plan the request; refuse it if no mirror of what it downloads can be reached."""
        from tasks.planning.make_plan import make_plan

        options = self.options
        self.plan = make_plan(
            storage=self.root,
            recipe=self.recipe,
            workers=options.workers,
            data=options.data,
            mirror=self.mirrors,
            registered_model=options.register_as,
            judge_only=options.judge_only,
            refresh=options.refresh,
            stage_timeout_s=parse_duration(options.stage_timeout, option="--stage-timeout"),
            stall_timeout_s=parse_duration(options.stall_timeout, option="--stall-timeout"),
        )
        self.origin = self._find_data()
        return self.origin

    def _require_weights(self) -> None:
        """Let timm download published weights into its cache; raise `ValueError` if it cannot."""
        from tasks.learning import downloading, pretrained

        weights, uri = self.plan.download.weights, self.plan.weights
        if weights is None or uri is None or manifest.is_committed(uri) or not weights.files[0].model:
            return
        try:
            pretrained.read_published(weights.files[0].model)
        except downloading.DownloadFailed as error:
            raise ValueError(str(error)) from None

    def _find_data(self) -> str:
        from tasks.learning import downloading

        self._require_weights()
        if images := self.plan.user_images:
            notes = [*map(str, images.left_out), *images.notes]
            return "; ".join([f"{len(images.files):,} files in {images.uri}", *notes])
        if results := [uri for uri in (self.plan.raw, self.plan.files) if uri and manifest.is_committed(uri)]:
            return f"{results[0]} exists"
        source = self.plan.download.source
        assert source, "a raw dataset of user images exists"
        if downloading.reachable(source, self.mirrors):
            return source.notice or f"a mirror of {source.name} responds"
        raise ValueError(downloading.unreachable_message(source, self.mirrors))

    def check_classes(self) -> str:
        """Check that the labels can be used."""
        from tasks.planning import data_summary

        self.summary = data_summary.of_plan(self.plan)
        return self.summary.classes

    def describe_run(self) -> str:
        """Describe the run: its recipe, data, number of epochs, and the stages to do."""
        from tasks.planning import model_check

        plan, recipe = self.plan, self.plan.recipe
        results: dict[str, URI | None] = {"download weights": plan.weights} if plan.download.weights else {}
        results |= {"download": plan.files} if self.downloads else {}
        results |= {"ingest": plan.raw} if plan.download.source or plan.user_images else {}
        results |= {"preprocess": plan.prepared, "train": plan.checkpoint}
        results |= {"predict": plan.predictions, "evaluate": plan.evaluation}
        to_do = [stage for stage, uri in results.items() if uri and not manifest.is_committed(uri)]
        stages = f"to do: {', '.join(to_do)}" if to_do else "all results exist and will be reused"
        hint = model_check.batch_hint(plan) if "train" in to_do else None
        stages += f"; WARNING: {hint}" if hint else ""
        return f"{recipe.name} on {plan.download.name}, {count(recipe.training.epochs, 'epoch')}; {stages}"

    def check_model(self) -> str:
        """Check what the training needs; build the model with `--check`, and if it is the user's own."""
        from tasks.planning import model_check

        model_check.check_training(self.plan)
        model = self.plan.recipe.model
        if not self.options.check and not (self.plan.needs_ray and user_code.is_reference(model)):
            return model
        return model_check.check_model(self.plan)

    @property
    def downloads(self) -> bool:
        """True if the run fetches a data set from a mirror."""
        results = (self.plan.raw, self.plan.files)
        return self.plan.data is None and not any(uri and manifest.is_committed(uri) for uri in results)


class Check(NamedTuple):
    """One check: a line of `--check`."""

    name: str
    after: str
    """Names of the checks that must have succeeded before."""
    run: Callable[[Preflight], str]
    only: Literal["", "told", "ray"] = ""
    """`told`: only for `--check`; `ray`: only for `--check` and for a run that needs Ray."""


CHECKS: Sequence[Check] = (
    Check("request", "", Preflight.check_request),
    Check("Ray", "request", lambda it: capacity.check_workers(it.options.workers, it.needs)),
    Check("storage", "", Preflight.check_storage),
    Check("data", "request storage", Preflight.check_data),
    Check("classes", "data", Preflight.check_classes),
    Check("labels", "classes", lambda it: it.summary.labels, only="told"),
    Check("run", "data", Preflight.describe_run, only="told"),
    Check("model", "data", Preflight.check_model),
    Check("disk", "storage", lambda it: capacity.check_disk(it.root), only="ray"),
    Check("nodes", "request storage", lambda it: check_nodes(it.root, it.options.workers, it.needs), only="ray"),
)


def check_and_plan(options: RunOptions) -> Preflight:
    """Check the request of a run, typed or of a deployment, and plan it; raise `ValueError` if it is invalid."""
    request = Preflight(options)
    for check in CHECKS:
        if not check.only or (check.only == "ray" and request.plan.needs_ray):
            check.run(request)
    return request


def check_prediction(options: PredictOptions) -> "BatchRequest":
    """Check the request of a prediction, typed or of a deployment; raise `ValueError` if it is invalid."""
    from tasks.planning import predict_request

    machine.choose(options.cores)
    capacity.check_workers(options.workers)
    request = predict_request.resolve(
        storage=options.storage,
        model=options.model,
        data=options.data,
        split=options.split,
        min_confidence=options.min_confidence,
        workers=options.workers,
        stage_timeout_s=parse_duration(options.stage_timeout, option="--stage-timeout"),
    )
    if request.needs_ray:
        check_disk_and_nodes(request.root, options.workers)
    return request


def check_disk_and_nodes(root: Root, workers: Workers, needs: Needs = ANY) -> None:
    """Raise `ValueError` if the disk is full, or a node of the cluster is unfit: checks of a run that needs Ray."""
    capacity.check_disk(root)
    check_nodes(root, workers, needs)


def report(options: RunOptions, more: Sequence[Check] = ()) -> int:
    """Run all checks and `more`, skip those that depend on a failed one, print a line for each; return 0 or 2."""
    request, failed = Preflight(options), set[str]()
    results: list[dict[str, str]] = []
    for name, after, run, _ in (*CHECKS, *more):
        verdict, text = "skipped", "depends on a failed check above"
        if not failed & set(after.split()):
            try:
                verdict, text = "ok", run(request)
            except (ValueError, OSError, Damaged) as error:
                verdict, text = "refused", str(error)
        if verdict != "ok":
            failed.add(name)
        results.append({"check": name, "verdict": verdict, "about": " ".join(str(text).split())})
        if not options.as_json:
            terminal.show(f"{verdict:<8} {name:<8} {results[-1]['about']}")
    if options.as_json:
        print(json.dumps(results, indent=1))
    return exits.INVALID if failed else 0
