"""The checks before a run: a run ends at the first that fails, `--check` carries out all of them and tells of each."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

from storage.manifest import Damaged

_SAMPLE_INSTEAD = "no mirror of the data set can be reached: going on with the sample that comes with the project"
UNKNOWN: Any = object()
"""In place of what a check that failed would have found."""


def strictly(what: str, check: Callable[..., Any], *inputs: Any) -> Any:
    """What `check` returns for `inputs`; its `ValueError` ends the run."""
    return check(*inputs)


class Told:
    """Carries out checks one after the other; each is told of in a line, and those that rest on a failed one are not
    carried out."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._results: list[dict[str, str]] = []

    def __call__(self, what: str, check: Callable[..., Any], *inputs: Any) -> Any:
        """What `check` returns for `inputs`, or `UNKNOWN`."""
        if any(one is UNKNOWN for one in inputs):
            self._tell(what, "unknown", "rests on what is refused above")
            return UNKNOWN
        try:
            found = check(*inputs)
        except (ValueError, OSError, Damaged) as error:
            self._tell(what, "refused", str(error))
            return UNKNOWN
        self._tell(what, "ok", str(found))
        return found

    def end(self) -> int:
        """The exit code: 0 when all is well, 2 when something would refuse the run."""
        if self._as_json:
            print(json.dumps(self._results, indent=1))
        return 0 if all(one["verdict"] == "ok" for one in self._results) else 2

    def _tell(self, what: str, verdict: str, about: str) -> None:
        about = " ".join(about.split())
        self._results.append({"check": what, "verdict": verdict, "about": about})
        if not self._as_json:
            print(f"{verdict:<8} {what:<8} {about}", flush=True)


def checked(arguments: argparse.Namespace, look: Any = strictly) -> "Planned":
    """What will be done, once everything that can be wrong with it was looked at; raises `ValueError`.

    `look` carries out each check; one that returns for what a check raised may get `UNKNOWN` in the end. Whether
    Prefect answers is asked after this (`flows.server.check_api`): importing it takes longer than all of these.
    """
    from tasks import capacity, plan, preflight

    asked = look("request", _asked, arguments)
    look("Ray", _workers, arguments, asked)
    root = look("storage", plan.check_root, arguments.storage)
    planned: Planned = look("data", _planned, arguments, asked, root)
    if arguments.check or planned.has_work:
        look("disk", capacity.check_disk, root)
        look("nodes", preflight.check_nodes, root, arguments.workers)
    return planned


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the command line asks for, as far as it can be known without looking at any storage."""

    base: Any
    """The recipe before it was changed."""
    recipe: Any
    addresses: tuple[str, ...]
    """Of mirrors to try before the data set's own."""
    sample: bool
    """Whether the sample is asked for by name."""

    def __str__(self) -> str:
        return f"{self.recipe.name} on {self.recipe.data}, {self.recipe.epochs} epochs"


def _workers(arguments: argparse.Namespace, asked: Asked) -> str:
    from tasks import capacity, plan

    return capacity.check_workers(arguments.workers, plan.needs_of(asked.recipe))


def _asked(arguments: argparse.Namespace) -> Asked:
    from tasks import given, plan
    from tasks.learning import recipes, sources

    base = recipes.load(given.default_recipe(arguments.data) if arguments.recipe is None else arguments.recipe)
    recipe = recipes.override(base, arguments.settings)
    plan.check_numbers(
        workers=arguments.workers,
        deadline_minutes=arguments.deadline,
        stall_minutes=arguments.stall,
        patience_minutes=arguments.patience,
    )
    mirrors = [source for source in arguments.source if source != "sample"]
    addresses = tuple(sources.mirror_address(source) for source in mirrors)
    asked_for_sample = len(mirrors) < len(arguments.source)
    if asked_for_sample and (arguments.no_sample or mirrors):
        raise ValueError("--source sample cannot be combined with another --source or with --no-sample")
    if arguments.data == "":
        raise ValueError("--data must be a folder or the URI of a raw dataset, got nothing; leave it out to download")
    if arguments.data and arguments.source:
        raise ValueError("--data cannot be combined with --source: nothing is downloaded")
    return Asked(base, recipe, addresses, asked_for_sample)


@dataclasses.dataclass(frozen=True)
class Planned:
    """What will be done."""

    plan: Any
    request: dict[str, Any]
    """The flow's parameters."""
    about: str
    """Where the data come from."""

    def __str__(self) -> str:
        return self.about

    @property
    def downloads(self) -> bool:
        """Whether a data set is to be fetched."""
        from tasks import plan

        return not (self.plan.given or any(map(plan.is_committed, (self.plan.raw, self.plan.files))))

    @property
    def has_work(self) -> bool:
        """Whether a stage is to be done that runs on Ray, if any does."""
        return bool(self.request["refresh"] or self.plan.needs_ray())

    @property
    def needs_ray(self) -> bool:
        """Whether Ray is to do it."""
        return self.request["workers"] != 0 and self.has_work


def _planned(arguments: argparse.Namespace, asked: Asked, root: str) -> Planned:
    """The plan of what `asked` asks for, with the sample in the data's place where there is no other way to any."""
    from tasks import plan
    from tasks.learning import recipes, sources

    made = plan.make(
        storage=root,
        recipe=asked.recipe,
        workers=arguments.workers,
        data=arguments.data,
        deadline_minutes=arguments.deadline,
        stall_minutes=arguments.stall,
        patience_minutes=arguments.patience,
    )
    if asked.sample and asked.base.fallback is None and made.data_set.notice is None:
        raise ValueError(f"--source: recipe {asked.base.name!r} has no sample; leave out --source sample")
    there = next((uri for uri in (made.raw, made.files) if uri and plan.is_committed(uri)), None)
    unreachable = not (there or made.own or asked.sample or sources.reachable(made.data_set, asked.addresses))
    may_fall_back = asked.base.fallback is not None and not asked.addresses and not arguments.no_sample
    waits = unreachable and arguments.patience > 0
    if unreachable and not may_fall_back and not waits:
        raise ValueError(sources.nobody_answers(made.data_set, asked.addresses))
    if made.own:
        about = f"{len(made.own.files):,} files in {made.own.uri}"
    elif waits:
        about = f"no mirror of {made.data_set.name} answers; they are tried again for {arguments.patience:g} minutes"
    else:
        about = f"{there} is there" if there else f"a mirror of {made.data_set.name} answers"
    recipe = asked.recipe
    if asked.base.fallback is not None and (asked.sample or (unreachable and not waits)):
        recipe = recipes.override(recipes.load(asked.base.fallback), arguments.settings)
        made = dataclasses.replace(made, recipe=recipe)
        about = "the sample that comes with the project"
        if unreachable:
            print(_SAMPLE_INSTEAD, file=sys.stderr, flush=True)
    parameters = request(arguments, recipe, storage=str(made.root), data=made.given)
    parameters |= {"source": list(asked.addresses), "refresh": arguments.refresh}
    return Planned(made, parameters | {"patience_minutes": arguments.patience}, about)


def request(arguments: argparse.Namespace, recipe: Any, *, storage: str, data: str | None) -> dict[str, Any]:
    """The parameters of the flow that every command line has."""
    from tasks.learning import recipes

    return {
        "recipe": recipe.origin or recipe.name,
        "storage": storage,
        "data": data and str(data),
        "workers": arguments.workers,
        "settings": recipes.changes(recipe),
        "deadline_minutes": arguments.deadline,
        "stall_minutes": arguments.stall,
    }
