"""The commands: a class of each, whose docstring is the help, and whose fields are the options."""

import dataclasses
from typing import Annotated, Literal

import typer

from flows.cli.options import (
    NONE,
    CopyOptions,
    Count,
    FlowOptions,
    Labels,
    MirrorOptions,
    Model,
    RecipeOptions,
    StorageOptions,
    TableOptions,
    Text,
    TrainingOptions,
)
from storage.exits import NAMED


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(MirrorOptions, TrainingOptions):
    """Build a trained, evaluated and promoted model from images.

    Download, ingest, preprocess, train, predict, evaluate, promote, report. Existing results are
    checked and reused.
    """

    runs = "flows.cli.start:run"
    epilog = """
    examples:
      python flows/pipeline.py                                     run everything, results below ./data
      python flows/pipeline.py                                     again: existing results are reused
      python flows/pipeline.py --set epochs=5 --set seed=1         another training on the same data
      python flows/pipeline.py --storage s3://bucket/prefix        shared storage (AWS_* variables, AWS_ENDPOINT_URL)
      RAY_ADDRESS=http://head:8265 python flows/pipeline.py ...    on a Ray cluster
      python flows/pipeline.py --mirror ./mnist-files              without internet, from a folder
      python flows/pipeline.py --check ...                         check the setup without running

    After an interruption or failure, run the same command again to resume.
    exit codes: 0 success (promoted or not), 1 failure, 2 invalid request, 130 interrupted, 143 terminated"""
    data: Annotated[
        Text,
        typer.Option(
            metavar="URI",
            help="your own images: a folder or s3://bucket/prefix with train/<class>/*.png (jpg, ...) and "
            "test/<class>/..., with only <class>/*.png, of which a fifth become test rows (--set test_fraction=0.2), "
            "or with train-*.parquet and test-*.parquet; or an existing raw dataset by its URI or name, "
            "such as mnist-1d9802c1c0d9 (default: download the recipe's source)",
        ),
    ] = None
    labels: Labels = None
    judge_only: Annotated[
        bool, typer.Option("--judge-only", help="record the decision, but keep the current champion in any case")
    ] = False
    refresh: Annotated[bool, typer.Option("--refresh", help="recompute everything, even if results exist")] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="check the setup without running; one line per fact, with --json the plan; exit code 0 or 2",
        ),
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictOptions(TableOptions, FlowOptions):
    """Predict every row of a dataset, or every image of a folder, exactly once.

    With or without labels; writes Parquet. New images are resized as in training and stored as a
    raw dataset below --storage, named after their content. Each prediction has the SHA-256 of its
    file beside it.
    """

    runs = "flows.cli.start:predict"
    epilog = """
    examples:
      data-to-model predict --data ~/new-photos --csv table.csv    new images, with the champion
      data-to-model predict --data data/datasets/raw/mnist-1d9802c1c0d9 --split test"""
    data: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="URI or name of a dataset, raw or prepared; or new images: a flat or nested folder, a file, "
            "or s3://bucket/prefix, with images or Parquet, with or without labels",
        ),
    ]
    model: Model = "champion"
    split: Annotated[
        Text, typer.Option(metavar="NAME", help="only this split of a dataset, such as test (default: all)")
    ] = None
    min_confidence: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="leave the class empty in --csv where its probability is lower, such as 0.92, and count these images "
            "apart; the report says how many images that leaves (default: every image gets a class)",
        ),
    ] = None
    max_distance: Annotated[
        float | None,
        typer.Option(
            metavar="DISTANCE",
            help="leave the class empty in --csv where the image is farther from all training and validation images, "
            "such as 0.4, and count these images apart; the report shows distances (default: every image gets a class)",
        ),
    ] = None
    no_drift: Annotated[
        bool, typer.Option("--no-drift", help="do not compare new images with the test rows of the model")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackfillOptions(TrainingOptions):
    """Train and evaluate a model on several versions of a source's data.

    Compares each with the champion, and records the decisions. The champion does not change.
    """

    runs = "flows.cli.start:backfill"
    epilog = """
    A version is a raw dataset below <storage>/datasets/raw; `data-to-model ls raw` lists them. The oldest is the one
    that was committed first. Existing results are reused: running the command again adds only what is missing.

    examples:
      data-to-model backfill --recipe mnist-resnet18               all versions of mnist
      data-to-model backfill photos-1d9802c1c0d9 photos-...        only these"""
    version: Annotated[
        list[str], typer.Argument(help="name or URI of a raw dataset (default: all of the recipe's source)")
    ] = NONE


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions(CopyOptions, MirrorOptions, RecipeOptions):
    """List images whose labels are probably wrong, worst first.

    Fits a linear classifier to the embeddings of four fifths of the images, five times, and compares
    what it says of the last fifth with the labels (confident learning). Writes
    <storage>/audits/<name>/ with a page, index.html.
    """

    runs = "flows.cli.start:audit"
    epilog = """
    Each image is judged by a model that was not trained on it. The models are trained like those of `run`, and kept
    until `data-to-model gc` deletes them: they take N times the space of the data. Repeating the command finds the
    result.

    examples:
      data-to-model audit ~/photos --copy-to suspects              your own images; copies named after both classes
      data-to-model audit mnist --json                             a source, its training and test images alike"""
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="your own images with labels, or a raw dataset, as --data of a run; or a source by its name: mnist",
        ),
    ]
    labels: Labels = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextOptions(CopyOptions, FlowOptions):
    """List the unlabeled images whose labels would teach a model most.

    Those whose class the model is least sure of, and which are not all alike: k-means of the
    embeddings, weighted by uncertainty. Images that it was trained on, and copies, are left out.
    """

    runs = "flows.cli.neighbors:next_to_label"
    epilog = """
    examples:
      data-to-model next ~/unlabeled --copy-to to-label         50 images, copies named after rank and predicted class
      data-to-model next ~/unlabeled --count 200 --csv next.csv"""
    data: Annotated[str, typer.Argument(metavar="FOLDER", help="new images, as `predict --data` takes them")]
    model: Model = "champion"
    count: Count = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarOptions(FlowOptions):
    """List the training, validation and test images most like an image, as a model sees them.

    By the cosine of their embeddings, what the model's backbone says about an image. Those of all
    images are computed once, and copied from then on.
    """

    runs = "flows.cli.neighbors:similar"
    epilog = """
    examples:
      data-to-model similar ~/odd.jpg                              with the champion
      data-to-model similar ~/odd.jpg --count 20 --model champion:photos"""
    data: Annotated[str, typer.Argument(metavar="FILE", help="the image")]
    model: Model = "champion"
    count: Count = 9


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgetOptions(FlowOptions):
    """Delete all that was ever made of an image, and make the champions again without it.

    First move the image out of the data's folder. A champion that was made of it is trained again
    on that folder, and replaced whatever the gate says; its exports are made again, too. Then all
    datasets, embeddings, models, predictions, exports, audits and reports that were made of the
    image, of a file with its pixels, or with such a model, are deleted whatever their age. Their
    names and digests are kept in <storage>/forgotten/<SHA-256>.json.
    """

    runs = "flows.cli.forgetting:forget"
    epilog = """
    If it is interrupted, the same command continues; start no other run until it has ended.

    examples:
      data-to-model forget ~/removed/17.jpg --dry-run              what would be made again, and deleted
      data-to-model forget ~/removed/17.jpg
      data-to-model forget 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"""
    image: Annotated[
        str, typer.Argument(metavar="FILE", help="the image, outside of the data's folder, or its SHA-256")
    ]
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list what would be made again and deleted, without doing it")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueOptions(TableOptions, StorageOptions):
    """List the training images that cost a probe most: without them, its test metric is better.

    A Newton step ranks all images; without each of the first ones the probe is fitted again. Points
    and loss are what a run without the image gives, minus the values now. Finally all listed
    images that raise the test loss are left out together.
    """

    runs = "flows.cli.value:value"
    epilog = """
    examples:
      data-to-model value                                          the 20 images that cost the champion most
      data-to-model value --by camera --model champion:photos"""
    model: Model = "champion"
    count: Count = 20
    by: Annotated[
        Literal["image", "folder", "camera", "day"],
        typer.Option(help="what is left out at a time; folder: one below the class; day: by the EXIF of your files"),
    ] = "image"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(StorageOptions):
    """Export a model to a file that other programs run without this project.

    Writes <storage>/exports/<name>/: the file, a README, and preprocess.py, which resizes a
    photo as in training. The file is run over all test rows first. If a logit differs from the
    model's by more than 1e-5 plus a thousandth of the largest logit, nothing is exported.
    """

    runs = "flows.cli.start:export"
    epilog = """
    examples:
      data-to-model export champion:photos                         model.onnx, its card, and preprocess.py for photos
      data-to-model export data/checkpoints/mnist-resnet18-e2b527dc0150"""
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"the checkpoint: {NAMED}")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MistakesOptions(CopyOptions, StorageOptions):
    """List the test rows that the model of a run gets wrong, by file, worst first.

    Worst is the most confident: the probability is that of the wrong class. Copies are the files
    themselves where they are still what was ingested, else the stored pixels as PNG.
    """

    runs = "flows.cli.comparing:mistakes"
    epilog = """
    examples:
      data-to-model mistakes                                       of the latest run, worst first
      data-to-model mistakes champion:photos --class dog --as cat --copy-to ./look-at
      data-to-model mistakes data/evaluations/photos-images-finetune-f747d2fe2e4a --csv mistakes.csv"""
    run: Annotated[
        Text,
        typer.Argument(
            metavar="RUN", help=f"any result of the run: {NAMED} (default: the run whose report was written last)"
        ),
    ] = None
    label: Annotated[
        Text, typer.Option("--class", metavar="CLASS", help="only rows of this class (default: of all classes)")
    ] = None
    prediction: Annotated[
        Text, typer.Option("--as", metavar="CLASS", help="only rows predicted as this class (default: as any)")
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiffOptions(StorageOptions):
    """Say what is different in two results or runs, in what their models get right, and why.

    Data: files, or rows of Parquet, that were added, removed, renamed, relabelled, moved to
    another split, or changed, by their digests; then fields of the recipe, code, versions and
    hardware; metrics on the test rows that both predicted, and the rows that got better and worse.
    """

    runs = "flows.cli.comparing:diff"
    epilog = """
    examples:
      data-to-model diff champion:photos photos-images-finetune-0ab793f7984d
      data-to-model diff data/datasets/raw/photos-1788d55bb02c data/datasets/raw/photos-6b3de3e0edcb --json"""
    a: Annotated[str, typer.Argument(metavar="A", help=f"any result of a run, or a dataset: {NAMED}")]
    b: Annotated[str, typer.Argument(metavar="B", help="the same; what is different is said of B against A")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatusOptions(StorageOptions):
    """Say what keeps the model from staying fresh, for cron, probes and people.

    No run ended well for too long, a schedule is paused or late, no worker is there, the gate has
    rejected five models in a row for the same reason, or the disk is full. `make up` shows the
    same at /status of its reports.
    """

    runs = "flows.server.status:main"
    epilog = """
    examples:
      data-to-model status || mail -s "no fresh model" ada@example.org

    environment:
      PREFECT_API_URL  the server whose schedules are checked; without one, the newest report counts

    exit codes: 0 all is well, 1 something is wrong, 2 invalid request"""
    max_age: Annotated[str, typer.Option(metavar="TIME", help="longest time since a run ended well: 30m, 36h, 2d")] = (
        "48h"
    )


COMMANDS: tuple[type[StorageOptions], ...] = (
    RunOptions,
    PredictOptions,
    BackfillOptions,
    AuditOptions,
    NextOptions,
    SimilarOptions,
    ForgetOptions,
    ValueOptions,
    ExportOptions,
    StatusOptions,
    MistakesOptions,
    DiffOptions,
)
"""In the order of the list of commands."""
