"""The hand-written arm: one plain PyTorch script without a framework, as somebody who knows how would write it.

As a script it does all of the pipeline's work: download, train, evaluate, predict, Parquet.

    python -m tests.benchmarks.plain --mirror DIR --out DIR

Model, precision and threads are those of the recipe; nothing of this project is used but its model factory.
"""

import argparse
import dataclasses
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel

CLASSES = 10
MAX_SHIFT = 2


@dataclasses.dataclass(kw_only=True)
class Split:
    """Images (uint8, NHWC) and labels (int64) in memory."""

    images: Tensor
    labels: Tensor


class Script:
    """Model, optimizer and the loops; with several ranks each has its share of the rows."""

    def __init__(
        self,
        train: Split,
        validation: Split,
        *,
        batch_size: int,
        epochs: int,
        bf16: bool,
        most_steps: int | None = None,
        weights: Path | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.train, self.validation, self.bf16 = train, validation, bf16
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.batch_size = batch_size // self.world_size
        pixels = train.images.double()
        self.mean, self.std = (127.5, 127.5) if weights else (float(pixels.mean()), float(pixels.std()))
        self.model = fine_tuned(weights) if weights else new(channels=train.images.shape[3])
        if bf16:
            self.model.to(memory_format=torch.channels_last)
        self.parallel = self.model
        if self.world_size > 1:
            self.parallel = DistributedDataParallel(self.model, gradient_as_bucket_view=True, static_graph=True)
        self.steps = min(len(train.labels) // self.batch_size, most_steps or len(train.labels))
        groups, rates = [{"params": list(self.model.parameters())}], [2e-3]
        if weights:
            head = list(self.model.get_submodule("classifier").parameters())
            groups, rates = [{"params": groups[0]["params"][: -len(head)]}, {"params": head}], [2e-4, 2e-3]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=1e-2, fused=True)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=rates, total_steps=self.steps * epochs, pct_start=0.25
        )

    def normalised(self, images: Tensor) -> Tensor:
        """BCHW floats."""
        return (images.permute(0, 3, 1, 2).float() - self.mean) / self.std

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One shuffled pass over the training rows."""
        order = torch.randperm(len(self.train.labels))
        for chosen in order.split(self.batch_size):
            if len(chosen) == self.batch_size:
                yield self.train.images[chosen], self.train.labels[chosen]

    def epoch(self) -> float:
        """Train and validate; the mean validation loss."""
        self.parallel.train()
        total = torch.zeros(())
        for images, labels in itertools.islice(self.batches(), self.steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                logits = self.parallel(self.normalised(shifted(images)))
            loss = cross_entropy(logits.float(), labels, label_smoothing=0.05)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            total += loss.detach()
        probabilities = self.predict(self.validation.images)
        return float(-probabilities.gather(1, self.validation.labels[:, None]).log().mean())

    @torch.inference_mode()
    def predict(self, images: Tensor) -> Tensor:
        """Probabilities, (N, classes)."""
        self.model.eval()
        probabilities = []
        for batch in images.split(512):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                logits = self.model(self.normalised(batch))
            probabilities.append(logits.float().softmax(1))
        return torch.cat(probabilities)

    def save(self, path: Path) -> None:
        """All that is needed to go on."""
        states = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }
        torch.save(states, path)


def new(*, channels: int) -> nn.Module:
    """ResNet-18 with random weights."""
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=CLASSES)
    model.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    return model


def fine_tuned(weights: Path) -> nn.Module:
    """EfficientNet-Lite0 with the weights of a file, but for a new head."""
    import timm
    from safetensors.torch import load_file

    model: nn.Module = timm.create_model("tf_efficientnet_lite0", num_classes=CLASSES)
    tensors = {name: tensor for name, tensor in load_file(weights).items() if not name.startswith("classifier.")}
    model.load_state_dict(tensors, strict=False)
    return model


def shifted(images: Tensor) -> Tensor:
    """Each image moved by its own random offset."""
    batch, height, width, _ = images.shape
    offsets = torch.randint(0, 2 * MAX_SHIFT + 1, (2, batch, 1))
    padded = pad(images, (0, 0, MAX_SHIFT, MAX_SHIFT, MAX_SHIFT, MAX_SHIFT))
    rows, columns = offsets[0] + torch.arange(height), offsets[1] + torch.arange(width)
    return padded[torch.arange(batch)[:, None, None], rows[:, :, None], columns[:, None, :]]


def has_bf16() -> bool:
    """Return whether this CPU supports bf16."""
    return bool(torch.cpu.get_capabilities().get("avx512_bf16", False))


def write_predictions(path: Path, probabilities: Tensor, labels: Tensor) -> None:
    """One row for each image."""
    values = probabilities.numpy()
    columns = {"id": np.arange(len(values)), "label": labels.numpy(), "prediction": values.argmax(1)}
    columns |= {f"probability_{label}": values[:, label] for label in range(CLASSES)}
    pq.write_table(pa.table(columns), path, compression="zstd")


def download(source: str, folder: Path) -> tuple[Split, Split]:
    """Train and test split, by torchvision."""
    from torchvision.datasets.mnist import read_image_file, read_label_file
    from torchvision.datasets.utils import download_and_extract_archive, extract_archive

    splits = []
    for prefix in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            name = f"{prefix}-{kind}-ubyte.gz"
            if source.startswith("file:"):
                shutil.copy(url2pathname(urlsplit(source).path) + f"/{name}", folder)
                extract_archive(str(folder / name))
            else:
                download_and_extract_archive(f"{source}/{name}", str(folder), filename=name)
        images = read_image_file(str(folder / f"{prefix}-images-idx3-ubyte"))[..., None]
        splits.append(Split(images=images, labels=read_label_file(str(folder / f"{prefix}-labels-idx1-ubyte"))))
    return splits[0], splits[1]


def whole(source: str, out: Path, *, epochs: int, batch_size: int) -> None:
    """Everything, once, into `out`."""
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        train, test = download(source, Path(folder))
    for name, split in {"train": train, "test": test}.items():
        pq.write_table(to_table(split), out / f"{name}.parquet", compression="zstd", use_dictionary=["label"])
    order = torch.randperm(len(train.labels))
    cut = len(order) // 10
    validation = Split(images=train.images[order[:cut]], labels=train.labels[order[:cut]])
    train = Split(images=train.images[order[cut:]], labels=train.labels[order[cut:]])
    script = Script(train, validation, batch_size=batch_size, epochs=epochs, bf16=has_bf16())
    best = float("inf")
    for epoch in range(1, epochs + 1):
        loss = script.epoch()
        print(f"epoch {epoch}: validation loss {loss:.4f}", flush=True)
        if loss < best:
            best = loss
            script.save(out / "best.pt")
    script.model.load_state_dict(torch.load(out / "best.pt", weights_only=True)["model"])
    probabilities = script.predict(test.images)
    write_predictions(out / "predictions.parquet", probabilities, test.labels)
    print(f"test accuracy {(probabilities.argmax(1) == test.labels).float().mean():.4f}")


def to_table(split: Split) -> pa.Table:
    """Raw bytes of a fixed size."""
    pixels = split.images.numpy()
    stored = pa.binary(int(np.prod(pixels.shape[1:])))
    image = pa.FixedSizeBinaryArray.from_buffers(stored, len(pixels), [None, pa.py_buffer(pixels)])
    return pa.table({"image": image, "label": split.labels.numpy()})


def read_split(folder: Path, *, rank: int = 0, world_size: int = 1) -> Split:
    """The rows of one rank, of a folder of Parquet files with raw images."""
    tables = [pq.read_table(path, columns=["image", "label"]) for path in sorted(folder.glob("*.parquet"))]
    images, labels = [], []
    for table in tables:
        stored = table["image"].combine_chunks()
        channels = 1 if stored.type.byte_width % 3 else 3
        side = int((stored.type.byte_width // channels) ** 0.5)
        images.append(np.frombuffer(stored.buffers()[1], np.uint8).reshape(len(table), side, side, channels))
        labels.append(table["label"].to_numpy())
    whole = Split(images=torch.from_numpy(np.concatenate(images)), labels=torch.from_numpy(np.concatenate(labels)))
    rows = len(whole.labels)
    mine = slice(rows * rank // world_size, rows * (rank + 1) // world_size)
    return Split(images=whole.images[mine], labels=whole.labels[mine])


def arm(prepared: Path, store: Path, *, batch_size: int, most_steps: int | None, weights: Path | None) -> None:
    """Epochs, checkpoints and feeding, one each time it is asked; under `torchrun` on several ranks."""
    from tests.benchmarks.arm import passed, serve

    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1:
        dist.init_process_group("gloo")
    train = read_split(prepared / "train", rank=rank, world_size=world_size)
    validation = read_split(prepared / "validation", rank=rank, world_size=world_size)
    validation = Split(images=validation.images[:512], labels=validation.labels[:512])
    how: dict[str, Any] = {"bf16": has_bf16(), "most_steps": most_steps, "weights": weights}
    script = Script(train, validation, batch_size=batch_size, epochs=1000, **how)

    def epoch() -> dict[str, float]:
        started = time.perf_counter()
        script.epoch()
        return {"seconds": time.perf_counter() - started, "rows": float(script.steps * batch_size)}

    def checkpoint() -> dict[str, float]:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            script.save(Path(folder, "checkpoint.pt"))
            shutil.copy(Path(folder, "checkpoint.pt"), store)
        return {"seconds": time.perf_counter() - started}

    serve({"epoch": epoch, "feed": lambda: passed(script.batches), "checkpoint": checkpoint})


def predict_arm(test: Path, out: Path) -> None:
    """Read, predict and write a folder of Parquet files each time it is asked."""
    from tests.benchmarks.arm import serve

    few = Split(images=torch.zeros(512, 28, 28, 1, dtype=torch.uint8), labels=torch.zeros(512, dtype=torch.int64))
    few.images[0] = 1
    script = Script(few, few, batch_size=128, epochs=100, bf16=has_bf16())

    def predict() -> dict[str, float]:
        started = time.perf_counter()
        split = read_split(test)
        write_predictions(out, script.predict(split.images), split.labels)
        return {"seconds": time.perf_counter() - started, "rows": float(len(split.labels))}

    serve({"predict": predict})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.plain", description=__doc__)
    parser.add_argument("--mirror", help="address of the data set's files")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, help="at most so many in an epoch")
    parser.add_argument("--prepared", type=Path, help="be an arm that trains on this dataset")
    parser.add_argument("--weights", type=Path, help="be an arm that fine-tunes EfficientNet-Lite0 from this file")
    parser.add_argument("--test", type=Path, help="be an arm that predicts this folder")
    options = parser.parse_args()
    if options.prepared:
        how = {"batch_size": options.batch_size, "most_steps": options.steps, "weights": options.weights}
        arm(options.prepared, options.out, **how)
    elif options.test:
        predict_arm(options.test, options.out)
    else:
        whole(options.mirror, options.out, epochs=options.epochs, batch_size=options.batch_size)


if __name__ == "__main__":
    main()
