"""Tools for the lines of `python -m tests.benchmarks.gpu`: CIFAR-10 or images of its shape, trainers and jobs."""

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from storage.uri import DatasetURI, Root
from tasks.jobs.train import choices
from tasks.learning import downloading, recipes, sources, training_state
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Batch, Trainer, seed_everything
from tasks.learning.modeling import Classifier, ModelSpec, resolve_precision, set_arithmetic
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Split
from tasks.runners.runner import InProcessRunner
from tests.benchmarks.store import Store
from tests.mirrors import fetch

TRAIN_ROWS = 50_000
"""Training rows of CIFAR-10."""
_SOURCE = sources.load("cifar10")
_VALIDATION = 10  # one row of so many


def cannot_compile() -> str:
    """Return what `torch.compile` lacks here; empty if it lacks nothing: Triton builds its driver from C with it."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(map(shutil.which, compilers)):
        return f"torch.compile needs a C compiler, and there is no {' or '.join(compilers)}"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.is_file() else f"torch.compile needs Python's headers, and there is no {header}"


class Bench:
    """A folder to work in, a device, and the images and recipes to measure with."""

    def __init__(
        self,
        folder: Path,
        *,
        device: torch.device,
        data: Path | None = None,
        rows: int = TRAIN_ROWS,
        epochs: int = 5,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.root = Root(str(folder / "root"))
        self.store = Store(self.root)
        self.device, self.data, self.rows, self.epochs = device, data, rows, epochs
        self.settings = dict(settings or {})
        self.image_shape = _SOURCE.image_shape

    @property
    def num_train_rows(self) -> int:
        """Rows of an epoch, without those of the validation."""
        return self.rows - self.rows // _VALIDATION

    def recipe(self, name: str, **changes: str | int) -> Recipe:
        """The recipe `name` with `changes` and then the settings of the command line."""
        return recipes.override(recipes.load(name), {"device": self.device.type, **changes, **self.settings})

    @cached_property
    def splits(self) -> dict[str, Split]:
        """Training and test rows: CIFAR-10's, or random ones."""
        if self.data is None:
            random, splits = np.random.default_rng(0), {}
            for name, count in (("train", self.rows), ("test", self.rows // 5)):
                pixels = random.integers(0, 256, (count, *self.image_shape), dtype=np.uint8)
                splits[name] = Split(name, pixels, np.arange(count) % len(_SOURCE.classes))
            return splits
        with tempfile.TemporaryDirectory() as folder:
            fetch(_SOURCE, Path(folder), downloading.mirror_address(str(self.data)))
            splits = {split.name: split for split in _SOURCE.read(Path(folder))}
        train = splits["train"]
        splits["train"] = Split("train", np.ascontiguousarray(train.images[: self.rows]), train.labels[: self.rows])
        return splits

    @cached_property
    def prepared(self) -> DatasetURI:
        """The rows as a prepared dataset, which processes of one folder share."""
        note = Path(self.root, "prepared")
        if not note.exists():
            raw = self.store.write_raw(_SOURCE, self.splits.values())
            note.write_text(self.store.preprocess(InProcessRunner(), raw))
        return DatasetURI(note.read_text())

    def trainer(self, recipe: Recipe) -> Trainer:
        """A training of `recipe` that is about to begin, set up as a job with one worker does."""
        train, validation = self._batches()
        some = train[0][:10_000].float().flatten(0, 2)  # they change no time
        mean, std = tuple(some.mean(0).tolist()), tuple(some.std(0).tolist())
        seed_everything(recipe.training.seed)
        about = ModelSpec(model=recipe.model, image_shape=self.image_shape, classes=_SOURCE.classes, mean=mean, std=std)
        model, loader = Classifier(about), ResidentLoader(train, validation, seed=0, rank=0, device=self.device)
        training_state.initialize_from_rows(model, loader)
        precision = resolve_precision(recipe.training.precision, self.device, model)
        set_arithmetic(precision, self.device)
        is_graphed = choices.takes_graph(recipe, device=self.device.type, world_size=1, loader="resident")
        return Trainer(recipe, model, loader, precision=precision, device=self.device, is_graphed=is_graphed)

    def _batches(self) -> tuple[Batch, Batch]:
        """Training and validation rows; the latter are spread over the split, whose files may be sorted."""
        split = self.splits["train"]
        pixels, labels = torch.from_numpy(split.images[:]), torch.from_numpy(split.labels)
        chosen = torch.arange(len(labels)) % _VALIDATION == _VALIDATION - 1
        return (pixels[~chosen], labels[~chosen]), (pixels[chosen], labels[chosen])
