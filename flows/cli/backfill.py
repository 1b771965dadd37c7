"""Backfill: run the flow on several versions of a source's data, oldest first; existing results are reused."""

import json
from functools import partial

from flows.cli import start
from flows.cli.options import BackfillOptions
from storage import in_use, terminal
from storage.exits import FAILED, HUNG_UP, INTERRUPTED, guarded, note, refused_if_invalid
from storage.uri import check_name, parse_root
from tasks.learning import recipes
from tasks.planning import dataset_versions
from tasks.planning.make_plan import check_workers
from tasks.resources import capacity, scaling
from tasks.runners import node_checks


def backfill(options: BackfillOptions, flow_of: start.FlowOf) -> int:
    """Train on each version that is named, or list them; return 1 if one failed."""
    with refused_if_invalid():
        recipe = recipes.override(recipes.load(options.recipe or "mnist-resnet18"), options.settings)
        check_workers(options.workers)
        if options.register_as:
            check_name(options.register_as, field="--register-as")
        capacity.check_workers(options.workers, scaling.needs_of(recipe))
        root = parse_root(options.storage)
        known = dataset_versions.known(root, recipe.data.source)
        versions = dataset_versions.chosen(known, names=options.version, first=options.first, last=options.last)
        if not options.list_only:
            dataset_versions.check_one(versions, named=bool(options.register_as))
            node_checks.check_nodes(root, options.workers, scaling.needs_of(recipe))
    if options.list_only:
        for line in [json.dumps(versions, indent=1)] if options.as_json else versions:
            terminal.show(line)
        return 0
    failed: list[str] = []
    with in_use.using(root, versions, owner="backfill"):  # also protects versions whose turn has not come yet
        for number, uri in enumerate(versions, start=1):
            note(f"\nversion {number} of {len(versions)}: {uri}")
            parameters = start.training_parameters(options, recipe, storage=options.storage, data=uri)
            parameters["judge_only"] = not options.promote
            code = guarded(partial(start.start, flow_of, parameters, as_json=options.as_json))
            if code in (HUNG_UP, INTERRUPTED):
                return code
            if code:
                failed.append(str(uri))
    if failed:
        note(f"{len(failed)} of {len(versions)} versions failed: {', '.join(failed)}")
    return FAILED if failed else 0
