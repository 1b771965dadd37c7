"""Invalid requests of every kind end in one line that names the mistake, within seconds, before any work."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.__main__ import main
from flows.cli import app, start
from flows.server import deploy, up
from storage import manifest, tables
from storage.uri import URI, Root
from tasks.learning import images
from tests import committed, mirrors
from tests.image_folder import write_folder

FINGERPRINT = "0123456789ab"


@dataclasses.dataclass(frozen=True)
class Bad:
    """A wrong request and its message."""

    command: str
    """Its words with a space between two; `{name}` stands for one of `places`, `""` for an empty word."""
    message: str
    """Parts of the line on stderr, with ` ... ` between two."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.env.items()), self.command])


_NO_SERVER = {"AWS_ENDPOINT_URL": "{refusing}", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}

REQUESTS = [
    Bad("run --nosuch", "--nosuch ... see ... --help"),
    Bad("run --set batch_size=1 --workers 2", "batch_size ... number of workers, 2, got 1"),
    Bad("run --data {photos} --workers 40", "batch_size ... number of workers, 40, got 4"),
    Bad("run --recipe nosuch", "recipe ... mnist-resnet18 ... 'nosuch'"),
    Bad("run --recipe resnet18", "recipe ... mnist-resnet18 ... did you mean --set model=resnet18?"),
    Bad("run --recipe my_recipe.py", "recipe ... did you mean --recipe my_recipe.py:recipe?"),
    Bad("run epochs=5", "(epochs=5) (did you mean --set epochs=5?)"),
    Bad("run --check {root}", "({root}) (did you mean --data {root}?)"),
    Bad("predict {root} --data {root}", "({root}) (did you mean --data {root}?)"),
    Bad("run --version", "--version (Possible options: --json); see"),
    Bad("/tmp", "Did you mean 'run --data /tmp'?"),
    Bad("run --recipe {nothing}.py:recipe", "--recipe ... {nothing}.py cannot be read"),
    Bad("run --set epochs", "--set ... field=value ... 'epochs'"),
    Bad("run --set lr=1e-3", "--set ... 'lr' ... did you mean 'learning_rate'"),
    Bad("run --lr=1e-3", "--lr (did you mean --set learning_rate=...?)"),
    Bad("run --set epochs=2 --set epochs=3", "--set ... epochs ... twice ... '2' and '3'"),
    Bad("run --recipe images-probe --data {photos} --set epochs=3", "--set ... epochs needs training=finetune, got 3"),
    Bad("run --recipe images-probe --data {photos} --set start=random", "--set ... start must not be random"),
    Bad("run --recipe images-probe --data {photos} --set optimizer=sgd", "--set ... optimizer needs training=finetune"),
    Bad("run --set training.kind=probe", "--set ... start must not be random with training=probe"),
    Bad("run --set epochs=0", "--set ... epochs ... equal to 1 ... 0"),
    Bad("run --set max_shift=28", "max_shift ... < 28 ... mnist ... 28"),
    Bad("run --set start=champion", "start=champion ... no champion of 'mnist-sample'"),
    Bad(
        "run --recipe images-resnet18 --data {parquet} --set image_size=4 --set max_shift=4", "max_shift ... < 4 ... 4"
    ),
    Bad("run --set freeze_epochs=2", "freeze_epochs must be 0 with start=random ... got 2; choose another start"),
    Bad(
        "run --set start=pretrained --set epochs=3 --set freeze_epochs=4",
        "freeze_epochs ... <= 3, the number of epochs",
    ),
    Bad("run --set model=resnet19", "model ... one of resnet18 ... such as timm/resnet34, got 'resnet19'"),
    Bad("run --set model=timm/resnet19", "model ... one that timm.list_models() names ... got 'timm/resnet19'"),
    Bad("run --set model=timm/resnet18.none", "timm.list_pretrained() names, got 'timm/resnet18.none': Invalid"),
    Bad("run --set compile=on --set device=cpu", "compile=on ... install g++", {"CXX": "no-c++"}),
    Bad("run", "PIPELINE_USER_CODE: ... /none.py", {"PIPELINE_USER_CODE": "/none.py"}),
    Bad("run --workers many", "--workers ... whole number"),
    Bad("run --workers 500 --set batch_size=1000", "--workers ... at most ... 500"),
    Bad("run --set cpus_per_worker=500", "--workers ... 500 CPUs ... cpus_per_worker ... at most 0"),
    Bad("run --stage-timeout 400d", "--stage-timeout ... at most 365d ... '400d'"),
    Bad("run --mirror /no/such/folder", "--mirror ... '/no/such/folder'"),
    Bad("run --mirror http://host:0/", "--mirror ... http(s)://host/path/ ... 'http://host:0/'"),
    Bad("run --mirror {file}", "--mirror: there is no folder '{file}'; choose one"),
    Bad("run --mirror https://user:secret@host/", "--mirror must be http(s)://host/path/"),
    Bad("run --mirror ftp://user:secret@host/", "an http(s) address or a folder, got 'ftp://***@host/'"),
    Bad("run --mirror {root} --data {raw}", "--data ... --mirror"),
    Bad("run --recipe images-resnet18", "--data is required"),
    Bad('run --data ""', "--data ... got an empty value"),
    Bad("run --data {root}", "--data ... neither images nor Parquet ... {root} ... train/<class>/"),
    Bad("run --data {nothing}", "--data ... nothing exists at {nothing} ... train/<class>/"),
    Bad("run --data {file}", "--data ... {file}"),
    Bad("run --data {prepared}", "--data ... of kind raw ... {prepared} of kind prepared"),
    Bad(
        "run --recipe mnist-resnet18 --data {sample}", "--data ... 'mnist' ... {sample} of 'mnist-sample' ... --recipe"
    ),
    Bad("run --data {files}", "store ... files ... {files}, got 'pixels'; use --set store="),
    Bad(
        "run --recipe images-resnet18 --data {parquet} --set store=files",
        "store ... pixels ... Parquet ... got 'files' for {parquet}",
    ),
    Bad("run --recipe images-resnet18 --data {parquet} --set start={pipe}", "start: there is no file {pipe}; give one"),
    Bad("run --data {pictures}", "--data ... rows in train and test ... {pictures} with rows in new; give the folder"),
    Bad("run --data {unnamed}", "--data ... fingerprint ... {unnamed}"),
    Bad("run --data {half}", "--data ... {half}/_manifest.json cannot be read"),
    Bad("run --data s3://bucket/x-0123456789ab", "--data ... s3://bucket/x ... AWS_ENDPOINT_URL", _NO_SERVER),
    Bad("run", "RAY_ADDRESS ... http://head:8265 ... 'head:8265'", {"RAY_ADDRESS": "head:8265"}),
    Bad('run --storage ""', "--storage ... got an empty value"),
    Bad(f"run --storage /tmp/{'x/' * 3000}", "--storage ... at most 1000 characters, got 6005"),
    Bad("run --storage /sys/nosuch", "--storage ... /sys/nosuch ... another folder"),
    Bad("run --data {photos} --storage {photos}/root", "--storage must not be below --data"),
    Bad("run --storage s3://user:secret@bucket/x", "--storage ... credentials ... AWS_*"),
    Bad("run --storage s3://bucket/x", "--storage ... nonsense", _NO_SERVER | {"AWS_ENDPOINT_URL": "nonsense"}),
    Bad("predict", "--data"),
    Bad("predict --data {root} --csv {root}", "--csv: must be a file in an existing, writable folder"),
    Bad("predict --data {root} --csv {file}/a.csv", "--csv: must be a file ... got '{file}/a.csv'"),
    Bad("predict --data {checkpoint}", "--data ... raw or prepared ... {checkpoint} of kind checkpoint"),
    Bad("predict --data {raw} --split nosuch", "--split ... test ... 'nosuch'"),
    Bad("predict --data {raw} --min-confidence 0", "--min-confidence must be above 0 and at most 1, got 0"),
    Bad("predict --data {raw} --max-distance -1", "--max-distance must be at least 0 and at most 2, got -1.0"),
    Bad("predict --data {raw}", "--model ... has no champion; train a model first: data-to-model run"),
    Bad("predict --data {raw} --model champion:../x", "--model ... registered model ... '../x'"),
    Bad("predict --data {raw} --model {raw}", "--model ... of kind checkpoint ... {raw} of kind raw"),
    Bad("predict --data {raw} --model {own}", "--model ... {own}: my.py:f@0123456789ab ... PIPELINE_USER_CODE to"),
    Bad("export champion:nosuch", "model: ... has no champion"),
    Bad("export {prepared}", "model must be of kind checkpoint ... {prepared} of kind prepared"),
    Bad("serve champion:nosuch", "model: ... has no champion"),
    Bad("serve --host 0.0.0.0", "--host 0.0.0.0 lets other machines in: set PIPELINE_SERVE_PASSWORD, or omit --host"),
    Bad("serve --port {taken}", "--port {taken} cannot be used ... Address already in use; choose another"),
    Bad("backfill --recipe mnist-resnet18", "--storage ... no raw dataset of 'mnist'"),
    Bad("backfill nosuch --storage {root}", "version ... mnist-0123456789ac ... 'nosuch'"),
    Bad("backfill --register-as BAD_ --storage {root}", "--register-as ... a-z, 0-9 and '-' ... 'BAD_'"),
    Bad("up --port 65536", "--port ... 65534"),
    Bad('up --host "" --port 24', "--host is empty"),
    Bad("up --host 2001:db8::1 --port 24", "--port 24 cannot be used on '2001:db8::1'"),
    Bad("up --port {taken}", "--port {taken} cannot be used ... Address already in use"),
    Bad("deploy extra", "extra"),
    Bad("deploy", "PREFECT_API_URL ... http://***@[", {"PREFECT_API_URL": "http://user:secret@["}),
    Bad("promote {raw}", "uri ... checkpoint ... {raw} of kind raw"),
    Bad("promote {checkpoint}", "uri ... {checkpoint} ... not below a storage root"),
    Bad("gc --keep-days=1.5", "--keep-days ... whole number"),
    Bad("gc --keep-days 0", "--keep-days ... greater than or equal to 1"),
    Bad("ls run", "KIND ... did you mean runs?"),
    Bad("ls runs raw --storage {root}", "kind: runs cannot be listed with raw; list it alone"),
    Bad("ls runs --html . --storage {root}", "--html must be a file, got the folder .; add a name"),
    Bad("ls --html runs.html --storage {root}", "--html is only for runs; use: ls runs"),
    Bad("history letters --storage {root}", "registered model: {root} has no decision on 'letters'; train a model"),
    Bad("rollback digits/1.json --storage {root}", "registered model: {root} has no decision on 'digits/1.json'"),
    Bad("ls checkpoints", "KIND ... 'checkpoints'; did you mean checkpoint?"),
    Bad("ls --storage gopher://x", "--storage ... gopher://x"),
    Bad("promote x --register-as a/b", "--register-as ... 'a/b'"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Results that can be named, and places where there are none."""
    folder = tmp_path_factory.mktemp("places")
    root = Root(str(folder / "root"))

    def commit(kind: str, name: str, *, parameters: dict[str, Any] | None = None) -> URI:
        uri = root.child(f"datasets/raw/{name}" if kind == "raw" else f"{kind}/{name}")
        listed = [manifest.File(path="part", split="test", size=1, rows=1, sha256="")]
        schema = tables.describe(images.schema((28, 28, 1), ("0", "1")))
        committed.commit(uri, kind, listed, parameters=parameters or {}, schema=schema)
        return uri

    own = root.child(f"checkpoint/own-{FINGERPRINT}")
    committed.commit(own, "checkpoint", model={"model": f"my.py:f@{FINGERPRINT}"})
    uris = {
        "raw": commit("raw", f"mnist-{FINGERPRINT}"),
        "younger": commit("raw", "mnist-0123456789ac"),
        "sample": commit("raw", f"mnist-sample-{FINGERPRINT}"),
        "unnamed": commit("raw", "mnist"),
        "prepared": commit("prepared", f"lost-{FINGERPRINT}"),
        "checkpoint": commit("checkpoint", f"mnist-{FINGERPRINT}"),
        "own": own,
        "root": root,
        "nothing": root.child(f"datasets/raw/none-{FINGERPRINT}"),
    }
    new = manifest.File(path="part", split="new", size=1, rows=1, sha256="")
    for name, store in (("pictures", "pixels"), ("files", "files")):  # pictures as batch prediction stores new ones
        uris[name] = root.child(f"datasets/raw/{name}-{FINGERPRINT}")
        schema = tables.describe(images.schema((64, 64, 3), ("one", "two"), store=store))
        parameters = {"listing": name, "image_size": 64}
        committed.commit(uris[name], "raw", [new], parameters=parameters, schema=schema)
    uris["half"] = URI(str(folder / f"half-{FINGERPRINT}"))
    Path(uris["half"]).mkdir()
    Path(uris["half"], manifest.NAME).write_bytes(b'{"format": 1, "kind": "raw"')
    write_folder(folder / "photos", train=6, test=2)
    (folder / "file").write_text("a file")
    (folder / "parquet").mkdir()
    (folder / "parquet" / "train.parquet").write_bytes(b"not read yet")
    (folder / "parquet" / "test.parquet").write_bytes(b"not read yet")
    more = {name: str(folder / name) for name in ("photos", "file", "parquet", "pipe.safetensors")}
    os.mkfifo(folder / "pipe.safetensors")
    with mirrors.refusing() as refusing:
        more |= {
            "pipe": more["pipe.safetensors"],
            "refusing": refusing,
            "taken": refusing.strip("/").rpartition(":")[2],
        }
        yield {name: str(uri) for name, uri in uris.items()} | more


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Default storage root of a test, which must stay empty; starting anything fails the test."""
    for name in ("RAY_ADDRESS", "PREFECT_API_URL", "PREFECT_SERVER_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIPELINE_STORAGE", str(tmp_path / "fresh"))

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("work began")

    for module, name in ((start, "start"), (up, "Child"), (deploy, "apply")):
        monkeypatch.setattr(module, name, fail)
    return tmp_path / "fresh"


@pytest.mark.parametrize("bad", REQUESTS, ids=lambda bad: str(bad)[:100])
def test_a_wrong_request_is_refused_in_one_line_and_nothing_begins(
    bad: Bad,
    places: Mapping[str, str],
    fresh: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in bad.env.items():
        monkeypatch.setenv(name, value.format(**places))
    words = [word.format(**places).replace('""', "") for word in bad.command.split(" ")]
    before = _listing(Path(places["root"]))
    code = main(words)
    output = capsys.readouterr()
    line = output.err.removeprefix(f"{app.STARTING}\n")
    assert (code, output.out, len(line.splitlines())) == (2, "", 1), output.err
    assert line.startswith("error: ") and "secret" not in line and "Traceback" not in line
    for part in bad.message.format(**places).split(" ... "):
        assert part in line
    assert _listing(fresh) == [] and _listing(Path(places["root"])) == before


def _listing(folder: Path) -> list[str]:
    """Every file below `folder`, but for lists of the user's files."""
    places = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    return sorted(place for place in places if "listing-" not in place)
