"""The command `backfill`: run the flow on each raw dataset of a source, oldest first."""

from functools import partial

from flows.cli import preflight, start
from flows.cli.options import BackfillOptions, RunOptions
from storage import exits
from storage.admin import catalog
from storage.uri import parse_root
from tasks.images.option import default_recipe
from tasks.learning import recipes


def backfill(options: BackfillOptions) -> int:
    """Train on each raw dataset and record what the gate says; the champion stays; return 1 if one failed."""
    shared = {name: value for name, value in vars(options).items() if name != "version"}
    with exits.refused_if_invalid():
        datasets = _datasets(options)
        preflight.check_request(RunOptions(**shared))
    failed = []
    for number, uri in enumerate(datasets, start=1):
        exits.note(f"\nversion {number} of {len(datasets)}: {uri}")
        run = RunOptions(**shared, data=uri, judge_only=True)
        code = exits.guarded(partial(start.run, run))
        if code in (exits.INTERRUPTED, exits.TERMINATED):
            return code
        failed += [uri] if code else []
    if failed:
        exits.note(f"{len(failed)} of {len(datasets)} versions failed: {', '.join(failed)}")
    return exits.FAILED if failed else 0


def _datasets(options: BackfillOptions) -> list[str]:
    """Return the raw datasets that the user names, else all that are named after the recipe's source, oldest first."""
    root, names = parse_root(options.storage), {name.rstrip("/").rpartition("/")[2] for name in options.version}
    source = recipes.load(options.recipe or default_recipe(None)).data.source
    folders = sorted(catalog.read_folders(catalog.list_folders(root, ["raw"])), key=lambda folder: folder.created)
    committed = {folder.uri.name: str(folder.uri) for folder in folders if folder.manifest}
    if missing := names - committed.keys():
        raise ValueError(f"version must be one of {', '.join(committed) or 'none'}, got {min(missing)!r}")
    chosen = names or {name for name in committed if name.rpartition("-")[0] == source}
    if not chosen:
        raise ValueError(f"--storage: {root} has no raw dataset of {source!r}; name some (`data-to-model ls raw`)")
    return [uri for name, uri in committed.items() if name in chosen]
