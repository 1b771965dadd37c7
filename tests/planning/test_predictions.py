"""Predictions as people read them: a table, the terminal's last lines, and the origin of each."""

import csv
import hashlib
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flows.cli import console
from flows.cli.predictions_csv import write_csv, write_rows
from storage import files, manifest, terminal
from storage.kinds import PredictionsURI
from storage.manifest import Damaged
from tasks.orchestration.stage import using
from tasks.orchestration.summary import summarize_prediction
from tests.images.test_new_images import CONTENTS, folder, predicted, request, rows_of
from tests.planning.conftest import NAMES

__all__ = ["folder"]


def test_predictions_become_a_table_with_names_and_reasons_and_are_counted_in_the_last_lines(
    models: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = request(models, folder)
    found = PredictionsURI(predicted(asked))
    table = tmp_path / "predictions.csv"
    table.write_text("of an earlier run")
    write_csv(found, table)
    rows = pd.read_csv(table, keep_default_na=False, dtype=str).set_index("file")
    assert list(rows.columns) == ["label", "class", "probability", "reason", "id", "sha256"]
    assert list(rows.index) == sorted(CONTENTS) and list(rows["id"]) == list("01234")
    assert dict(rows["sha256"]) == {path: hashlib.sha256(content).hexdigest() for path, content in CONTENTS.items()}
    assert dict(rows["label"]) == dict.fromkeys(CONTENTS, "") | {"zwei/b.png": "zwei", "Äpfel/c.jpg": "Äpfel"}
    assert list(rows.loc["cut.jpg"])[:4] == ["", "", "", "truncated"]
    expected = rows_of(found).set_index("file").drop("cut.jpg")
    assert dict(rows["class"].drop("cut.jpg")) == dict(expected["class_name"])
    assert np.allclose(rows["probability"].drop("cut.jpg").astype(float), expected["probability"], atol=1e-6)

    summary = summarize_prediction(asked, found, [])
    assert summary["predicted"] == {name: int((expected["class_name"] == name).sum()) for name in NAMES}
    terminal.show_lines(console.lines(summary | {"csv": str(table)}))
    *_, predicted_line, unreadable, where = [line for line in capsys.readouterr().out.splitlines() if line[0:1] != " "]
    assert predicted_line == "predicted      4 rows of 5"
    assert unreadable == "unreadable     1 row without a prediction: cut.jpg (truncated)"
    assert where.startswith("table") and where.endswith("predictions.csv")

    assert str(pd.read_parquet(found, dtype_backend="numpy_nullable")["prediction"].dtype) == "Int64"

    before = table.read_bytes()
    part = manifest.load(found).files[0]
    files.put(found.child(part.path), b"damaged")
    with pytest.raises(Damaged):
        write_csv(found, table)
    assert table.read_bytes() == before and sorted(path.name for path in tmp_path.glob("*pred*")) == ["predictions.csv"]
    files.remove(found)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_table_reads_back_and_no_spreadsheet_executes_a_cell_of_it(tmp_path: Path, separator: str) -> None:
    names = ["=1+2.png", "@SUM(A1)", "+49 170", "-2+3", " =1", "\t=1", "＝1", "a;=1;b"]
    names += ["a\n=1", "a\r=1", 'a,"b"', "Zürich=卵"]
    write_rows(tmp_path / "table.csv", ["file", "id"], [{"file": name, "id": 7} for name in names], has_mark=True)
    with (tmp_path / "table.csv").open(encoding="utf-8-sig", newline="") as table:
        content = table.read()
    assert [row[0].replace("'", "") for row in csv.reader(io.StringIO(content, newline=""))] == ["file", *names]
    cells = [cell for row in csv.reader(io.StringIO(content, newline=""), delimiter=separator) for cell in row]
    assert [cell for cell in cells if cell.lstrip()[:1] in tuple("=+-@＝")] == []
    assert (tmp_path / "table.csv").read_bytes().startswith(b"\xef\xbb\xbffile,id\n'=1+2.png,7\n'@SUM(A1),7\n")


def test_another_min_confidence_reuses_the_predictions_and_writes_another_table(
    models: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = request(models, folder, min_confidence=0.01)
    predictions = PredictionsURI(predicted(first))
    expected = rows_of(predictions).set_index("file").drop("cut.jpg")
    assert sum(summarize_prediction(first, predictions, [])["predicted"].values()) == len(expected)
    minimum = float(expected["probability"].nlargest(2).iloc[-1])
    is_sure = expected["probability"] >= minimum
    assert is_sure.sum() == 2

    second = request(models, folder, min_confidence=minimum)
    with using(second.root, []) as stages:
        assert predicted(second) == predictions
    assert [stage.reused for stage in stages] == [True, True]
    write_csv(predictions, tmp_path / "table.csv", min_confidence=minimum)
    table = pd.read_csv(tmp_path / "table.csv", keep_default_na=False, dtype=str).set_index("file").drop("cut.jpg")
    assert list(table["class"]) == list(expected["class_name"].where(is_sure, ""))
    assert "" not in set(table["probability"])
    assert set(table["reason"][~is_sure]) == {f"probability below {minimum:g}"}
    summary = summarize_prediction(second, predictions, stages)
    assert (summary["below_min_confidence"], summary["unpredicted"]["rows"]) == (2, 1)
    counts = expected["class_name"][is_sure].value_counts()
    assert summary["predicted"] == {name: counts.get(name, 0) for name in NAMES}
    terminal.show_lines(console.lines(summary))
    assert "no class       2 rows below --min-confidence\n" in capsys.readouterr().out
    files.remove(predictions)


def test_distance_is_refused_of_a_model_whose_images_have_no_embeddings(models: Path, folder: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^--max-distance needs embeddings of the model's own images, but .* has none"
    ):
        request(models, folder, max_distance=0.4)
