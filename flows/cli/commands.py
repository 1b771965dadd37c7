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
    """Train a model, and promote it if it passes the gate.

    Downloads, ingests, preprocesses, trains, predicts, evaluates, promotes and reports. Checks and
    reuses existing results.
    """

    runs = "flows.cli.start:run"
    epilog = """
    examples:
      data-to-model run                                    the bundled digits, results below ./data
      data-to-model run --data ~/photos                    your own images
      data-to-model run --set epochs=5 --set seed=1        another training on the same data
      data-to-model run --storage s3://bucket/prefix       shared storage (AWS_* variables)
      RAY_ADDRESS=http://head:8265 data-to-model run ...   on a Ray cluster
      data-to-model run --mirror ./mnist-files ...         without internet, from a folder
      data-to-model run --check ...                        check the setup without running

    After an interruption or failure, run the same command again to resume.
    exit codes: 0 success (promoted or not), 1 failure, 2 invalid request, 130 interrupted, 143 terminated"""
    data: Annotated[
        Text,
        typer.Option(
            metavar="URI",
            help="your own images: a folder or s3://bucket/prefix with <class>/*.jpg (a fifth become test rows), with "
            "train/<class>/*.jpg and test/<class>/*.jpg, or with train-*.parquet and test-*.parquet; or a raw dataset "
            "by its URI or name, such as mnist-1d9802c1c0d9 (default: download the recipe's source)",
        ),
    ] = None
    labels: Labels = None
    judge_only: Annotated[
        bool, typer.Option("--judge-only", help="record the decision, but keep the current champion in any case")
    ] = False
    refresh: Annotated[bool, typer.Option("--refresh", help="recompute everything, at new URIs")] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="check the setup without running, also a few images and the model; print a line per fact, with --json "
            "the plan; exit code 0 or 2",
        ),
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictOptions(TableOptions, FlowOptions):
    """Classify every image of a folder or row of a dataset, exactly once.

    With or without labels. Writes Parquet, with the SHA-256 of its file beside each prediction.
    Resizes new images as in training, and stores them below --storage.
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
            help="new images: a flat or nested folder, a file, or s3://bucket/prefix, with images or Parquet; or the "
            "URI or name of a raw or prepared dataset",
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
            "separately; the report says how many that leaves (default: every image gets a class)",
        ),
    ] = None
    max_distance: Annotated[
        float | None,
        typer.Option(
            metavar="DISTANCE",
            help="leave the class empty in --csv where the image is farther from all training and validation images, "
            "such as 0.4, and count these images separately; the report shows distances (default: every image gets a "
            "class)",
        ),
    ] = None
    no_drift: Annotated[
        bool, typer.Option("--no-drift", help="do not compare new images with the test rows of the model")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackfillOptions(TrainingOptions):
    """Train and evaluate on every stored version of the data.

    Compares each model with the champion, and records the decisions. The champion does not change.
    """

    runs = "flows.cli.start:backfill"
    epilog = """
    A version is a raw dataset; `data-to-model ls raw` lists them. The command starts with the oldest, reuses existing
    results, and prints a table, or a JSON document, for each.

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
    its classes for the last fifth with the labels (confident learning). Writes
    <storage>/audits/<name>/ with a page, index.html.
    """

    runs = "flows.cli.start:audit"
    epilog = """
    examples:
      data-to-model audit ~/photos --copy-to suspects              your own images; copies named after both classes
      data-to-model audit mnist --json                             a source, its training and its test images"""
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

    Chooses images whose class is uncertain and which differ from each other, by k-means of the
    embeddings, weighted by uncertainty. Skips copies, and training images.
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
    """List the training, validation and test images most like an image.

    Compares the cosines of embeddings, the vectors that the model's backbone computes. Computes the
    embeddings of all images once.
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
    """Delete everything made of an image, and retrain the champions without it.

    First move the image out of the folder of your images. The command trains each champion that
    learned from it again, whatever the gate says. Then it deletes everything made of the image, of a
    file with its pixels, or with such a model. It writes a certificate,
    <storage>/forgotten/<SHA-256>.json.
    """

    runs = "flows.cli.forgetting:forget"
    epilog = """
    If it is interrupted, run it again: it continues. Start no other run before it has finished.

    examples:
      data-to-model forget ~/removed/17.jpg --dry-run"""
    image: Annotated[
        str, typer.Argument(metavar="FILE", help="the image, outside of the data's folder, or its SHA-256")
    ]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list what the command would retrain and delete")] = (
        False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueOptions(TableOptions, StorageOptions):
    """List the training images that lower the test metric of a probe most.

    Ranks all images by a Newton step, and fits the probe again without each of the first ones. At
    last it leaves out all listed images that raise the test loss, together.
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
        typer.Option(help="what to leave out at a time; folder: one below the class; day: by the EXIF of your files"),
    ] = "image"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(StorageOptions):
    """Export a model to a file that other programs run without this project.

    Writes <storage>/exports/<name>/: the file, a README, and preprocess.py, which resizes a
    photo as in training. First it compares the file with the model on all test rows. If a logit
    differs by more than 1e-5 plus a thousandth of the largest logit, it exports nothing.
    """

    runs = "flows.cli.start:export"
    epilog = """
    examples:
      data-to-model export champion:photos                         model.onnx, its card, and preprocess.py"""
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"the checkpoint: {NAMED}")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MistakesOptions(CopyOptions, StorageOptions):
    """List the test images that a model gets wrong.

    The most confident mistake comes first. --copy-to copies your files, or the stored pixels as PNG
    if a file has changed.
    """

    runs = "flows.cli.comparing:mistakes"
    epilog = """
    examples:
      data-to-model mistakes                                       of the latest run, worst first
      data-to-model mistakes champion:photos --class dog --as cat --copy-to ./look-at
      data-to-model mistakes --csv mistakes.csv"""
    run: Annotated[
        Text,
        typer.Argument(metavar="RUN", help=f"any result of the run: {NAMED} (default: the latest run)"),
    ] = None
    label: Annotated[
        Text, typer.Option("--class", metavar="CLASS", help="only rows of this class (default: of all classes)")
    ] = None
    prediction: Annotated[
        Text, typer.Option("--as", metavar="CLASS", help="only rows predicted as this class (default: as any)")
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiffOptions(StorageOptions):
    """Show what changed between two results or runs, and why.

    Compares images, recipe, code, versions and hardware. Then it compares the metrics on the test
    rows that both models predicted, and lists the rows that got better or worse.
    """

    runs = "flows.cli.comparing:diff"
    epilog = """
    examples:
      data-to-model diff champion:photos photos-images-finetune-0ab793f7984d
      data-to-model diff data/datasets/raw/photos-1788d55bb02c data/datasets/raw/photos-6b3de3e0edcb --json"""
    a: Annotated[str, typer.Argument(metavar="A", help=f"any result of a run, or a dataset: {NAMED}")]
    b: Annotated[str, typer.Argument(metavar="B", help="the same; the command says how B differs from A")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatusOptions(StorageOptions):
    """Say what keeps the model from staying fresh, for cron, probes and people.

    Examples: no run has succeeded for too long, no worker runs, the disk is full.
    """

    runs = "flows.server.status:main"
    epilog = """
    examples:
      data-to-model status || mail -s "no fresh model" ada@example.org

    environment:
      PREFECT_API_URL  the server whose schedules are checked; without one, the newest report counts

    exit codes: 0 all is well, 1 something is wrong, 2 invalid request"""
    max_age: Annotated[str, typer.Option(metavar="TIME", help="longest time since the last success: 30m, 36h, 2d")] = (
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
