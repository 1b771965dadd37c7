"""What a soak shows: its runs, requests and growth as tables in Markdown, and every promise that was broken."""

import contextlib
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from storage import manifest, registry, tables
from storage.admin import catalog
from storage.kinds import PREDICTIONS, RAW, DatasetURI
from storage.uri import URI, Root
from tasks.images import row_tables
from tests.faults import checker
from tests.faults.history import Event, History
from tests.faults.soak_images import Photographs
from tests.runs import CHECKOUT

MODEL = "soak"
"""Registered model, and name of the deployments."""
_WELL = {"Promoted", "Rejected", "Unchanged", "NothingNew", "Completed"}
_OPEN = "state_type NOT IN ('COMPLETED', 'FAILED', 'CANCELLED') AND state_name != 'GivenUp'"
_PLANNED = "FROM flow_run WHERE json_extract(created_by, '$.type') = 'SCHEDULE' AND expected_start_time <= ?"
_STATES = (
    f"SELECT count(DISTINCT flow_run_id), count(*) FROM flow_run_state WHERE flow_run_id IN (SELECT id {_PLANNED})"
)
_STATES_BY = {
    "runs later than Prefect tolerates (`Late`)": "name = 'Late'",
    "runs that waited for another one": "name = 'AwaitingConcurrencySlot'",
    "runs restarted after a crash": "message = 'restarted after a crash'",
    "runs resumed after Ctrl-C": "message = 'the worker was stopped'",
}


class Database:
    """Prefect's SQLite file, read beside the server, and also while there is none."""

    def __init__(self, home: Path) -> None:
        self._path = home / "prefect.db"

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=60)) as connection:
            return connection.execute(query, values).fetchall()

    def states(self) -> dict[str, int]:
        """Number of runs by state; none before there is a database."""
        with contextlib.suppress(sqlite3.OperationalError):
            return dict(self.rows("SELECT state_name, count(*) FROM flow_run GROUP BY 1"))
        return {}

    def size_mb(self) -> float:
        return round(sum(path.stat().st_size for path in self._path.parent.glob("prefect.db*")) / 10**6, 1)

    def num_unended(self, end: float) -> int:
        """Number of runs that a schedule planned for a time before `end` and that have not ended."""
        return int(self.rows(f"SELECT count(*) {_PLANNED} AND {_OPEN}", _stamp(end))[0][0])


def report(folder: Path, photos: Photographs, *, end: float) -> tuple[str, list[str]]:
    """Return the tables of the soak in `folder`, and one line for each promise that was broken.

    `photos` are as they are at the end; the schedules count until `end`, in seconds since 1970.
    """
    root, database = Root(str(folder / "root")), Database(folder / "home")
    events: dict[str, list[Event]] = {}
    for event in History(folder / "history.jsonl").events():
        events.setdefault(event["point"], []).append(event)
    counts: dict[str, object] = {}
    typed = [event["s"] for event in events["typed"]]
    problems = [*_runs(database, counts, end, typed), *_requests(root, counts, events["request"])]
    problems += [*_drift(database, counts, events["growth"]), *_stored(root, photos)]
    problems += [*checker.illegal_states(folder / "home"), *(f"left: {left}" for left in events["left"][0]["commands"])]
    counts |= {f"killed: {kind}": count for kind, count in Counter(kill["kind"] for kill in events["kill"]).items()}
    counts["`make up` typed"] = len(typed)
    lines = ["| what | count |", "| --- | ---: |", *(f"| {what} | {count} |" for what, count in counts.items())]
    return "\n".join([*lines, "", *_growth(events["minute"]), ""]), problems


def _runs(database: Database, counts: dict[str, object], end: float, typed: Sequence[float]) -> Iterator[str]:
    """Account for every run that was due by the clock until `end`; `make up` was typed at the times `typed`."""
    columns = "json_extract(created_by, '$.display_value'), expected_start_time, run_count, state_name"
    runs, due = database.rows(f"SELECT {columns} {_PLANNED} ORDER BY 2", _stamp(end)), set[tuple[str, float]]()
    planned = [(run[0], _seconds(run[1])) for run in runs]
    intervals = (
        "SELECT slug, json_extract(schedule, '$.interval') AS seconds FROM deployment_schedule WHERE seconds > 0"
    )
    for slug, interval in database.rows(intervals):
        first = min(s for name, s in planned if name == slug)
        due |= {(slug, first + interval * number) for number in range(1 + int((end - first) // interval))}
    started, ended, skipped = sum(run[2] > 0 for run in runs), Counter(run[3] for run in runs), due - set(planned)
    counts |= {"runs due by the clock": len(due), "planned by the server": len(runs), "skipped": len(skipped)}
    counts["started"] = started
    counts["starts of these runs"] = sum(run[2] for run in runs)
    for what, condition in _STATES_BY.items():
        ((of_runs, times_in_all),) = database.rows(f"{_STATES} AND {condition}", _stamp(end))
        counts[what] = f"{of_runs} ({times_in_all} times)" if "ed after" in what else of_runs
    counts |= {f"ended as `{name}`": count for name, count in sorted(ended.items())}
    yield from (f"{count} runs ended as {name}" for name, count in ended.items() if name not in _WELL)
    if not len(planned) == len(set(planned)) == started:
        yield f"{len(set(planned))} times were planned, {len(planned)} runs for them, {started} of these started"
    # Prefect deletes planned runs when a deployment is registered, and plans again within five seconds.
    yield from (f"{run} was skipped" for run in skipped if not any(0 < run[1] - s < 120 for s in typed))


def _requests(root: Root, counts: dict[str, object], requests: Sequence[Event]) -> Iterator[str]:
    """Count requests, and compare the models that answered with the registry's champions."""
    decisions, became, answered = registry.history(root, MODEL), dict[str, float](), dict[str, float]()
    for decision in decisions:
        if decision.promoted and decision.champion and decision.decided:
            became[manifest.load(decision.champion).digest] = decision.decided.timestamp()
    for request in requests:
        answered.setdefault(request.get("digest", ""), request["s"])
    waits = [answered[digest] - s for digest, s in list(became.items())[1:] if digest in answered]
    failed = [request for request in requests if request["status"] != 200]
    counts |= {"decisions": len(decisions), "of these promotions": len(became), "requests": f"{len(requests):,}"}
    counts |= {"requests failed": len(failed), "models that answered": len(answered)}
    counts["seconds of a request, median and longest"] = _spread([request["seconds"] for request in requests], ".3f")
    counts["seconds until a new champion answered, median and longest"] = _spread(waits, ".0f")
    yield from (f"a request failed: {request}" for request in failed)
    yield from (f"{digest} answered and was never champion" for digest in set(answered) - set(became))
    champion = manifest.load(URI(str(decisions[-1].champion))).digest
    if requests[-1].get("digest") != champion:
        yield f"{requests[-1]} was not answered by the champion {champion}"
    if [decision.number for decision in decisions] != list(range(1, len(decisions) + 1)):
        yield "the decisions are not numbered without gaps"


def _drift(database: Database, counts: dict[str, object], steps: Sequence[Event]) -> Iterator[str]:
    query = "SELECT min(occurred), count(*) FROM events WHERE event = 'pipeline.predictions.drift'"
    ((first, counts["reports of drift"]),) = database.rows(query)
    began = next((step["s"] for step in steps if step["is_dark"]), 0.0)
    if not first or _seconds(first) < began:
        yield f"drift was reported at {first}, and began at {_stamp(began)}"
    else:
        counts["minutes from the first dark image to the first report"] = round((_seconds(first) - began) / 60, 1)


def _stored(root: Root, photos: Photographs) -> Iterator[str]:
    """Every byte as committed, every row predicted once and of a file that exists, the labels as they are now."""
    command = [sys.executable, "-m", "flows", "verify", "--deep", "--storage", root]
    verified = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    if verified.returncode:
        yield f"verify --deep: {verified.stdout}{verified.stderr}"
    results = catalog.read_folders(catalog.list_folders(root, [PREDICTIONS.name, RAW.name]))
    for result in results:
        if result.manifest and result.kind == PREDICTIONS.name:
            yield from _predicted(result.uri, result.manifest)
    raw = [each for each in results if each.manifest and each.uri.name.startswith(f"{photos.labeled.name}-")]
    newest = max((each for each in raw if each.kind == RAW.name), key=lambda each: each.created).uri
    sources = row_tables.table_of(DatasetURI(newest))
    if sources is None or set(sources["path"]) != photos.files():
        yield f"{newest} does not have the files and labels as they are now"


def _predicted(uri: URI, document: manifest.Manifest) -> Iterator[str]:
    dataset, rows = DatasetURI(document.parent("dataset", of=uri)), tables.read_split(uri).to_pandas()
    split = document.parameters.get("split")
    splits = [split] if split else sorted({str(file.split) for file in manifest.load(dataset).files if file.split})
    ids = [row for name in splits for row in tables.read_split(dataset, name, columns=["id"])["id"].to_pylist()]
    if sorted(rows["id"]) != sorted(ids):
        yield f"{uri} has {len(rows)} rows for {len(ids)}"
    sources = row_tables.table_of(dataset)
    assert sources is not None
    files = set(zip(sources["path"], sources["sha256"], strict=True))
    if not set(zip(rows["file"], rows["sha256"], strict=True)) <= files:
        yield f"{uri} names files that {dataset} does not have"


def _growth(minutes: Sequence[Event]) -> Iterator[str]:
    """Seven of the minutes, evenly; the memory of what runs all the time."""
    yield "| minute | images | storage | `PREFECT_HOME` | its database | runs ended well | server | worker | endpoint |"
    yield "| ---: " * 9 + "|"
    for event in (minutes[round(index * (len(minutes) - 1) / 6)] for index in range(7)):
        ended = sum(count for state, count in event["runs"].items() if state in _WELL)
        sizes = [f"{event[name]:.1f}" for name in ("root", "home", "database")]
        memory = [event["memory"].get(role, "-") for role in ("server", "worker", "endpoint")]
        cells = [round((event["s"] - minutes[0]["s"]) / 60), event["images"], *sizes, ended, *memory]
        yield f"| {' | '.join(map(str, cells))} |"


def _spread(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}}, {max(values):{form}}" if values else "-"


def _stamp(seconds: float) -> str:
    """A time as Prefect's SQLite file has it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
