"""The command `forget`: replace the champions that were made of an image, then delete all that was made of it."""

import contextlib
import dataclasses
import datetime
import hashlib
import re
import sys
from collections.abc import Iterable, Sequence

from flows.cli import preflight, start
from flows.cli.commands import ForgetOptions, RunOptions
from flows.cli.storage_commands import existing_root
from storage import access, champions, exits, files, manifest, reference, registry, terminal
from storage.admin import forgetting
from storage.admin.catalog import Folder, made_from
from storage.admin.forgetting import Certificate
from storage.kinds import EXPORT, KINDS, RAW, CheckpointURI, DatasetURI
from storage.uri import URI, Root, parse_root
from storage.uses import FORGETTING
from tasks.export import export
from tasks.images import traces
from tasks.images.traces import Traces
from tasks.ingest import ingest
from tasks.orchestration.stage import using
from tasks.planning import model_requests
from tasks.planning.plan import Plan
from tasks.runners.session import session


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Work:
    """What is to be done, as storage was when it was read."""

    root: Root
    certificate: Certificate
    family: Sequence[Folder] = ()
    """The results that were made of the image, each before what it was made from."""
    plans: Sequence[Plan] = ()
    """A run for each champion to replace."""


def forget(options: ForgetOptions) -> int:
    """Forget an image, or continue; print what was replaced and deleted, or with `--dry-run` what would be."""
    with exits.refused_if_invalid():
        work = _prepare(options)
    root, certificate = work.root, work.certificate
    if options.dry_run:
        return _show(work, as_json=options.as_json)
    if not certificate.finished:
        for plan in work.plans:
            with contextlib.redirect_stdout(sys.stderr) if options.as_json else contextlib.nullcontext():
                _train_again(plan)
        _export_again(root, work.family)
        with exits.refused_if_invalid():
            certificate = _list_deleted(root, certificate)
        forgetting.delete(root, certificate.deleted)
        ended = {"finished": datetime.datetime.now(datetime.UTC)}
        certificate = forgetting.write(root, certificate.model_copy(update=ended))
    lines = [f"replaced {old} by {new}" for old, new in certificate.replaced.items()]
    deleted = terminal.count(len(certificate.deleted), "result")
    lines.append(f"deleted {deleted}, listed in {forgetting.place(root, certificate.sha256)}")
    return terminal.answer(certificate.model_dump(mode="json"), lines, as_json=options.as_json)


def _prepare(options: ForgetOptions) -> _Work:
    """Read storage and check that all can be done; raise `ValueError` if not."""
    root = existing_root(options.storage)
    forgetting.check_no_run(root, now=access.check_writable(root))
    sha256, content = _image(options.image)
    before = forgetting.read(root, sha256)
    if before.deleted and not before.finished:
        return _Work(root=root, certificate=before)
    found, family = _find(root, before, content=content)
    if not family and not traces.is_listed(root, found.files):
        if before.finished:
            return _Work(root=root, certificate=before)
        raise ValueError(f"FILE: no result below {root} was made of the image {sha256}; see: data-to-model ls raw")
    pixels = tuple(sorted(digest.hex() for digest in found.pixels))
    changes = {"files": tuple(sorted(found.files)), "pixels": pixels, "finished": None}
    plans = [
        preflight.checked_again(options, champion, root=root, registered_model=name)
        for name, champion in _champions(root, [folder.uri for folder in family]).items()
    ]
    for plan in plans:
        _check_removed(plan, found, sha256, ingests=not options.dry_run)
    return _Work(root=root, certificate=before.model_copy(update=changes), family=family, plans=plans)


def _image(word: str) -> tuple[str, bytes]:
    """Return SHA-256 and content of the file that a user names; a SHA-256 alone does not give the content."""
    if re.fullmatch("[0-9a-f]{64}", word):
        return word, b""
    uri = parse_root(word, option="FILE")
    if not files.exists(uri):
        raise ValueError(f"FILE must be an image or its SHA-256, 64 digits of 0-9a-f, got {uri}, which does not exist")
    content = files.read(uri)
    return hashlib.sha256(content).hexdigest(), content


def _find(root: Root, certificate: Certificate, *, content: bytes = b"") -> tuple[Traces, list[Folder]]:
    """Return the traces of the image, and all results that were made of it, each before what it was made from."""
    deleted = {root.child(name) for name in certificate.deleted}
    folders = forgetting.results(root, deleted=deleted)
    raws = dict.fromkeys(
        folder.parents.get("raw", folder.uri)
        for folder in folders
        if folder.kind == RAW.name or "raw" in folder.parents
    )
    pixels = [bytes.fromhex(digest) for digest in certificate.pixels]
    datasets = [DatasetURI(uri) for uri in raws if manifest.is_committed(uri)]
    found = traces.find(datasets, {certificate.sha256, *certificate.files}, pixels, content=content)
    made = deleted.union(map(URI, found.rows["dataset"].unique()))  # pandas keeps plain texts
    family = [folder for folder in folders if folder.uri in made] + made_from(folders, made)
    order = [*reversed(KINDS)]
    return found, sorted(family, key=lambda folder: order.index(folder.kind))


def _champions(root: Root, uris: Iterable[URI]) -> dict[str, CheckpointURI]:
    names = {uri.name for uri in uris}
    current = {name: registry.champion(root, name) for name in champions.registered_models(root)}
    return {name: champion for name, champion in current.items() if champion and champion.name in names}


def _check_removed(plan: Plan, found: Traces, sha256: str, *, ingests: bool) -> None:
    """Raise `ValueError` if the image is still among the images of a run; `ingests` reads them first."""
    listed = plan.ungrouped or plan.ingest
    assert listed, "a champion to forget was made of a folder"
    if ingests:
        marked = using(plan.root, plan.uses, marker=FORGETTING)
        with marked, session(wanted=False, workers=plan.train.workers) as runner:
            ingest.fn(listed.made_from, plan.recipe.data, runner, group=listed.group, limits=plan.limits)
    raw = listed.target
    if manifest.is_committed(raw) and len(rows := traces.find([raw], found.files, found.pixels).rows):
        raise ValueError(
            f"FILE: the image is still in {plan.data}: {terminal.first(rows['path'].unique())}; move it elsewhere, "
            f"then run: data-to-model forget {sha256} --storage {plan.root}"
        )


def _train_again(plan: Plan) -> None:
    root, name, train = plan.root, plan.registered_model, plan.train
    options = RunOptions(data=plan.data, register_as=name, storage=root, workers=train.workers, cores=train.cores)
    start.carry_out(plan, options)


def _export_again(root: Root, family: Sequence[Folder]) -> None:
    """Export what replaced each champion that has an export among the `family` of the image."""
    exported = {URI(parent) for folder in family if folder.kind == EXPORT.name for parent in folder.parents.values()}
    for old, new in _replaced(root).items():
        if old in exported and manifest.is_committed(new):
            request = model_requests.resolve_export(storage=root, model=new)
            with using(root, [request.checkpoint, request.prepared], marker=FORGETTING):
                export.fn(request)


def _replaced(root: Root) -> dict[CheckpointURI, CheckpointURI]:
    """Return each champion that lost its place to a model made without an image, and that model."""
    history = (decision for name in champions.registered_models(root) for decision in registry.history(root, name))
    return {
        decision.withdraws: decision.challenger
        for decision in history
        if decision.withdraws and decision.gate  # a rollback has none
    }


def _list_deleted(root: Root, certificate: Certificate) -> Certificate:
    """Record all that is to be deleted; raise `ValueError` if a run is active, or if a champion is among it."""
    forgetting.check_no_run(root, now=access.check_writable(root))
    _, family = _find(root, certificate)
    left = {reference.of(folder.uri, root=root): folder.manifest.digest for folder in family if folder.manifest}
    deleted = certificate.deleted | left
    if names := _champions(root, map(root.child, deleted)):
        raise ValueError(
            f"FILE: the champion of {', '.join(names)} was made of the image meanwhile; promote another with: "
            "data-to-model promote URI, then run the same command again"
        )
    replaced = {reference.of(old, root=root): reference.of(new, root=root) for old, new in _replaced(root).items()}
    changes = {"deleted": deleted, "replaced": {old: new for old, new in replaced.items() if old in deleted}}
    return forgetting.write(root, certificate.model_copy(update=changes))


def _show(work: _Work, *, as_json: bool) -> int:
    replaced = {plan.registered_model: plan.replaces for plan in work.plans}
    deleted = [reference.of(folder.uri, root=work.root) for folder in work.family] or [*work.certificate.deleted]
    lines = [f"would train {name} again, to replace {old}" for name, old in replaced.items()]
    lines += [f"would delete {uri}" for uri in deleted]
    return terminal.answer({"champions": replaced, "deleted": deleted}, lines, as_json=as_json)
