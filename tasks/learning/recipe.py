"""A recipe: all settings of a training run, in groups that say which result a field decides."""

import dataclasses
import json
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from storage.manifest import JSON
from storage.uri import check_name
from tasks.learning import models, sources, user_code, variants
from tasks.learning.variants import Fraction, Share, group

MAX_MEGAPIXELS = 64
"""Megapixels of the largest user images that are read, unless a recipe says otherwise."""
_SMALLEST = 4
"""Pixels per side of the smallest images."""
_Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Switch = Annotated[
    Literal["auto", "on", "off"],
    BeforeValidator(lambda value: ("off", "on")[value] if isinstance(value, bool) else value),  # as YAML reads them
]
_ClassWeights = Literal["auto", "none", "balanced"]


@group
class Data:
    """The images and how they are stored: decides raw datasets."""

    source: str
    """A module of `tasks.learning.sources`, `user-images` for `--data`, or `own(SOURCE)`."""
    image_size: int = Field(default=0, ge=0, le=4096)
    """User images: pixels per side after resizing; 0: the size that start=pretrained was trained on, else 64."""
    channels: Literal[1, 3] = 3
    """User images: 1 converts all of them to gray, 3 to RGB."""
    store: Literal["pixels", "files"] = "pixels"
    """User images: store pixels of `image_size`, or unchanged files, which every epoch decodes."""
    test_fraction: Fraction = 0.2
    """User images in class folders without splits: share that becomes test rows."""
    max_megapixels: int = Field(default=MAX_MEGAPIXELS, ge=1, le=178)
    """User images: the run leaves out larger ones, in million pixels; at most 178."""

    def __post_init__(self) -> None:
        sources.check_known(self.source)
        if 0 < self.image_size < _SMALLEST:
            raise ValueError(f"image_size must be 0 or >= {_SMALLEST}, got {self.image_size}")
        if self.store == "files" and self.source != sources.USER_IMAGES:
            raise ValueError(
                f"store must be pixels for source={self.source}, got 'files'; only files given by --data can be stored"
            )


@group
class Split:
    """Training and validation rows: decides prepared datasets."""

    split_seed: _Seed = 0
    """Seed of the choice of validation rows and of the order of stored rows."""
    validation_fraction: Fraction = 0.1
    """Probability with which a training row becomes a validation row, used to choose the best epoch."""
    max_quarantined: Share = 0.01
    """Largest share of raw rows that may be unusable; if more are, the run stops."""
    group: Literal["none", "near-duplicates", "folder"] = "none"
    """User images that stay in one split: near-duplicates, such as bursts; or images of one folder below the class."""


@group
class Probe:
    """Fit only the head, by logistic regression on embeddings: takes seconds. With `model`, decides checkpoints."""

    kind: Literal["probe"] = "probe"
    start: variants.Start = variants.Pretrained()
    """Weights of the backbone, which stay as they are."""
    class_weights: _ClassWeights = "auto"
    """Weight of a row, as in a training of all layers."""


@group
class Training:
    """How all weights are found, by gradient steps: with `model`, decides checkpoints."""

    kind: Literal["finetune"] = "finetune"
    epochs: int = Field(ge=1, le=100_000)
    """Passes over the training rows."""
    batch_size: int = Field(default=128, ge=0, le=2**24)
    """Rows per optimizer step, summed over all workers; 0: 32, or fewer, so that an epoch has 5 steps and skips few
    rows. Each epoch skips the rows that fill no batch, and shuffles anew."""
    micro_batches: int = Field(default=1, ge=1)
    """Pieces in which each worker computes its share of a batch; more pieces take less memory."""
    start: variants.Start = variants.Random()
    """Initial weights: random; pretrained, as timm publishes them; champion, of the registered model; champion:NAME, of
    another one; or a file or URI that ends in .safetensors. The head is new. A probe keeps the rest as it is."""
    ensemble: Literal["none", "probe"] = "none"
    """probe: average the model's probabilities with the ones of a probe on the initial weights. Only with store=pixels,
    and weights that are pretrained or from a file."""
    freeze_epochs: int = Field(default=0, ge=0)
    """First epochs that train only the model's head."""
    backbone_lr_scale: float = Field(default=1.0, gt=0)
    """Learning rate of the backbone, as a multiple of the head's."""
    optimizer: variants.Optimizer = variants.AdamW()
    """AdamW, or SGD with Nesterov's momentum."""
    label_smoothing: float = Field(default=0.05, ge=0, lt=1)
    """Share of each target spread evenly over all classes, in training only."""
    class_weights: _ClassWeights = "auto"
    """Weight of a row in the losses: 1 (none), or balanced: rows / (classes * rows of its class), so that every class
    counts the same, in training and in the choice of the best epoch; auto: balanced if a class has 3 times the training
    rows of another."""
    augment: variants.Augment = variants.PixelAugment()
    """Random changes of images, in training only; of the kind of `data.store`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic: bf16 autocast, or fp32 (bit-identical resume); auto selects bf16 if the hardware supports it."""
    validation_batch_size: int = Field(default=0, ge=0, le=2**24)
    """Rows per validation batch of each worker; 0: at most 512, on a GPU as many as in a training step."""
    early_stop: int = Field(default=0, ge=0)
    """End this many epochs after the best one, not counting `freeze_epochs`; 0: never. The learning rate follows its
    schedule for all `epochs`."""
    compile: _Switch = "auto"
    """Compile the training step with torch.compile, and keep the code for later runs; auto: on a GPU, from the third
    epoch on, if that saves time. On CPUs, on needs g++."""
    loader: Literal["auto", "resident", "streaming", "dataloader", "ray-data"] = "auto"
    """Source of rows: memory, storage in each epoch, DataLoader, or Ray Data; auto: by data size and nodes."""
    seed: _Seed = 0
    """Seed of the initial weights, the order of batches and the augmentation."""

    def __post_init__(self) -> None:
        if self.micro_batches > self.batch_size > 0:
            raise ValueError(f"micro_batches must be <= {self.batch_size}, got {self.micro_batches}")
        if self.freeze_epochs > self.epochs:
            raise ValueError(f"freeze_epochs must be <= {self.epochs}, the number of epochs, got {self.freeze_epochs}")
        if self.backbone_lr_scale != 1 and self.optimizer.kind == "own":
            raise ValueError(f"backbone_lr_scale must be 1 with your own optimizer, got {self.backbone_lr_scale}")
        if self.early_stop and self.constant_epochs:
            raise ValueError(
                "early_stop must be 0 with schedule=warmup-constant-decay, whose last epochs bring most, got "
                f"{self.early_stop}; add --set early_stop=0, and more epochs later if they are too few"
            )

    @property
    def constant_epochs(self) -> int:
        """Number of epochs before the learning rate falls, which any number of more `epochs` shares; 0: none."""
        if isinstance(self.optimizer, variants.Own) or self.optimizer.schedule == "one-cycle":
            return 0
        return self.epochs - max(1, round(self.epochs * self.optimizer.decay_fraction))


@group
class Gate:
    """When a model is promoted: decides no result."""

    metric: Literal["auto", "accuracy", "balanced_accuracy", "macro_f1"] = "auto"
    """What the gate compares on the test rows: accuracy; or mean recall or mean F1 of all classes, rare ones included;
    auto: balanced_accuracy for a model with balanced class weights, else accuracy."""
    minimum: Share = 0.9
    """The gate promotes no model with a lower metric."""
    tolerance: Share = 0.0
    """How far a new model's metric may fall below the champion's; several promotions may add up."""
    max_p_value: Share | None = None
    """Largest p-value of the exact test with which the gate promotes a better model; 0: no test.
    Unset: no test for more rows to learn from, or for the champion's recipe on as many other rows, else 0.05.
    Ignored with `tolerance`."""
    classes_may_go: bool = False
    """Whether a model without some classes of the champion may replace it."""


@group
class Resources:
    """What a worker gets, and how fast: decides no result."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of every worker: a whole GPU (cuda), none (cpu), or a GPU wherever Ray has any now (auto)."""
    step: Literal["auto", "eager", "graph"] = "auto"
    """Launch of a step on a GPU: kernel by kernel (eager), or as CUDA graphs. They need one worker, rows in memory, and
    a model that never waits for the GPU. auto: graphs where possible, except for a model of your own."""
    accelerator_type: str = ""
    """GPU type of every worker, in Ray's terms, such as A100; empty: any."""
    cpus_per_worker: float = Field(default=0.0, ge=0)
    """CPUs of every worker, in Ray's terms; 0: its share of a node, with a GPU at most 4."""

    def __post_init__(self) -> None:
        if self.accelerator_type and self.device == "cpu":
            raise ValueError(f"accelerator_type must be empty with device=cpu, got {self.accelerator_type!r}")


@group
class Recipe:
    """A complete, validated description of one training run; equal recipes give equal URIs.

    Raises `ValueError` naming the field, the value and what is allowed.
    """

    name: str
    """Name of the run's folders: `[a-z0-9-]`, at most 64 characters."""
    data: Data
    split: Split = Split()
    model: Annotated[str, AfterValidator(models.canonical)]
    """Name of the model: a module of `tasks.learning.models`, `timm/NAME`, or `own(factory)`."""
    training: Annotated[Training | Probe, Field(discriminator="kind")]
    """finetune: train all layers by gradient steps; probe: fit only a new head, in seconds."""
    gate: Gate = Gate()
    resources: Resources = Resources()
    origin: str | None = None
    """What `--recipe` takes to get the original: the name of one of the project, `path.py:function` or
    `folder:function`; set by `load`."""

    def __post_init__(self) -> None:
        check_name(self.name, field="name")
        models.check_known(self.model)
        if self.split.group != "none" and self.data.source != sources.USER_IMAGES:
            raise ValueError(
                f"group must be none for source={self.data.source}, got {self.split.group!r}; only user images "
                "are in groups"
            )
        if self.split.group == "near-duplicates" and self.training.start.kind not in ("pretrained", "file"):
            raise ValueError(
                f"group=near-duplicates needs embeddings by weights that stay the same, got start="
                f"{self.training.start.kind}; use start=pretrained, start=FILE or group=folder"
            )
        is_random = self.training.start.kind == "random"
        if self.training.kind == "probe":
            if is_random:
                raise ValueError(
                    "start must not be random with training=probe, as such a backbone has learned nothing; use "
                    "start=pretrained, or start=FILE for a model of your own"
                )
            return
        if self.training.freeze_epochs and is_random and not user_code.is_reference(self.model):
            raise ValueError(
                f"freeze_epochs must be 0 with start=random, whose backbone has learned nothing, got "
                f"{self.training.freeze_epochs}; choose another start, or add --set freeze_epochs=0"
            )
        store, loader, augment = self.data.store, self.training.loader, self.training.augment
        if augment.kind != store:
            raise ValueError(f"augment must be {store.title()[:-1]}Augment(...) with store={store}, got {augment}")
        if store == "files" and loader in ("resident", "dataloader"):
            raise ValueError(f"loader must be auto, streaming or ray-data with store=files, got {loader!r}")
        if self.resources.step == "graph":
            needed = {
                "device=cuda": self.resources.device == "cuda",
                "loader=resident or auto": loader in ("auto", "resident"),
                "micro_batches=1": self.training.micro_batches == 1,
            }
            if missing := [name for name, is_met in needed.items() if not is_met]:
                raise ValueError(f"step must be auto or eager without {' and '.join(missing)}, got 'graph'")

    @property
    def has_probe(self) -> bool:
        """Whether a probe is fitted to embeddings of the images by the initial weights."""
        if self.training.kind == "probe":
            return True
        is_fixed = self.training.start.kind in ("pretrained", "file")
        return self.training.ensemble == "probe" and is_fixed and self.data.store == "pixels"

    @property
    def finetuning(self) -> Training:
        """How the weights are found by gradient steps; only for code that trains in this way."""
        assert isinstance(self.training, Training)
        return self.training

    def to_dict(self) -> JSON:
        """Convert to JSON-ready values, from which `from_dict` makes the recipe again."""
        return dataclasses.asdict(self)


def from_dict(values: JSON) -> Recipe:
    """Return the recipe that `to_dict` gave as `values`; raises `ValueError` as `Recipe` does."""
    try:
        return _RECIPE.validate_json(json.dumps(values))  # in JSON strict groups are made from objects
    except pydantic.ValidationError as error:
        raise ValueError(variants.first_problem(error)) from None


_RECIPE = TypeAdapter(Recipe)
