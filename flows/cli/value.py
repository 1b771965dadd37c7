"""The command `value`: what training images, or groups of them, cost a probe."""

from typing import Any

from flows.cli import predictions_csv
from flows.cli.commands import ValueOptions
from flows.cli.storage_commands import existing_root
from storage import exits, terminal
from storage.admin import catalog
from storage.decision import metric_title
from storage.kinds import CheckpointURI
from storage.manifest import JSON
from tasks.planning import model_check


def value(options: ValueOptions) -> int:
    with exits.refused_if_invalid():
        checkpoint = CheckpointURI(catalog.named(existing_root(options.storage), options.model, option="--model"))
        catalog.committed(checkpoint, option="--model", kinds=("checkpoint",))
        model_check.check_code(checkpoint, option="--model")
        from tasks.comparing import value as valuing  # imports torch

        retraining = valuing.Retraining(checkpoint)
        group_of_row, groups = valuing.groups_of(retraining.train, options.by)
    before, ranked, num_harmful, without = valuing.measure(retraining, group_of_row, groups, count=options.count)
    ranked.insert(0, "rank", range(1, len(ranked) + 1))
    rows: list[Any] = ranked.to_dict("records")
    if options.csv:
        predictions_csv.write_rows(options.csv, [*ranked], rows, has_mark=options.excel)
    document: JSON = {"checkpoint": checkpoint, "metric": retraining.metric, "before": before._asdict()}
    document |= {options.by: rows, "harmful": num_harmful, "without": without._asdict()}
    ranked["points"], ranked["loss"] = ranked["points"].map("{:+.2f}".format), ranked["loss"].map("{:+.4f}".format)
    cost, name = f"{100 * (without.metric - before.metric):.2f} points", metric_title(retraining.metric)
    validation = terminal.count(len(retraining.validation.labels), "validation row")
    account = (
        f"the first {terminal.count(num_harmful, options.by)} cost {cost}: without them {name} {without.metric:.4f} "
        f"instead of {before.metric:.4f}, test loss {without.loss:.4f} instead of {before.loss:.4f}; on the "
        f"{validation}, which had no part in the choice, {without.validation:.4f} instead of {before.validation:.4f}"
    )
    table = terminal.table([[*ranked], *ranked.astype(str).to_numpy().tolist()])
    return terminal.answer(document, [*table, account], as_json=options.as_json)
