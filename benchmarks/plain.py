"""The hand-written side: one plain PyTorch script without a framework, as somebody who knows how would write it.

It does all of the pipeline's work: download, train, evaluate, predict, Parquet.

    python -m benchmarks.plain --mirror DIR --out DIR

Model, precision and threads are those of the recipe; nothing of this project is used.
"""

import argparse
import dataclasses
import gzip
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

CLASSES = 10
MAX_SHIFT = 2


@dataclasses.dataclass(kw_only=True)
class Split:
    """Images (uint8, NHWC) and labels (int64) in memory."""

    images: Tensor
    labels: Tensor


class Script:
    """Model, optimizer and the loops."""

    def __init__(self, train: Split, *, batch_size: int, epochs: int) -> None:
        torch.manual_seed(0)
        self.train, self.batch_size, self.bf16 = train, batch_size, has_bf16()
        pixels = train.images.double()
        self.mean, self.std = float(pixels.mean()), float(pixels.std())
        self.model = new_model()
        if self.bf16:
            self.model.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=1e-2, fused=True)
        steps = len(train.labels) // batch_size * epochs
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.25
        )

    def normalized(self, images: Tensor) -> Tensor:
        """BCHW floats."""
        return (images.permute(0, 3, 1, 2).float() - self.mean) / self.std

    def train_epoch(self) -> None:
        """Take every step of an epoch on shuffled rows."""
        self.model.train()
        order = torch.randperm(len(self.train.labels))
        for rows in order[: len(order) // self.batch_size * self.batch_size].split(self.batch_size):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                logits = self.model(self.normalized(shifted(self.train.images[rows])))
            loss = cross_entropy(logits.float(), self.train.labels[rows], label_smoothing=0.05)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()

    @torch.inference_mode()
    def predict(self, images: Tensor) -> Tensor:
        """Probabilities, (N, classes)."""
        self.model.eval()
        probabilities = []
        for batch in images.split(512):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                logits = self.model(self.normalized(batch))
            probabilities.append(logits.float().softmax(1))
        return torch.cat(probabilities)

    def save(self, path: Path) -> None:
        """Save all that is needed to resume."""
        states: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        torch.save({name: part.state_dict() for name, part in states.items()}, path)


def new_model() -> nn.Module:
    """ResNet-18 for gray images, with random weights."""
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=CLASSES)
    model.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
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


def download(mirror: str, prefix: str) -> Split:
    """The images and labels of one split."""
    images, labels = (
        gzip.decompress(urlopen(f"{mirror}/{prefix}-{kind}-ubyte.gz").read()) for kind in ("images-idx3", "labels-idx1")
    )
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28, 1)
    return Split(
        images=torch.from_numpy(pixels.copy()),
        labels=torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)),
    )


def run_all(mirror: str, out: Path, *, epochs: int, batch_size: int) -> None:
    """Everything, once, into `out`."""
    out.mkdir(parents=True)
    train, test = download(mirror, "train"), download(mirror, "t10k")
    for name, split in {"train": train, "test": test}.items():
        pq.write_table(to_table(split), out / f"{name}.parquet", compression="zstd", use_dictionary=["label"])
    order = torch.randperm(len(train.labels))
    cut = len(order) // 10
    validation = Split(images=train.images[order[:cut]], labels=train.labels[order[:cut]])
    train = Split(images=train.images[order[cut:]], labels=train.labels[order[cut:]])
    script = Script(train, batch_size=batch_size, epochs=epochs)
    best = float("inf")
    for epoch in range(1, epochs + 1):
        started = time.perf_counter()
        script.train_epoch()
        rate = len(train.labels) // batch_size * batch_size / (time.perf_counter() - started)
        probabilities = script.predict(validation.images)
        loss = float(-probabilities.gather(1, validation.labels[:, None]).log().mean())
        print(f"epoch {epoch}: validation loss {loss:.4f}, images/s {rate:.1f}", flush=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain", description=__doc__)
    parser.add_argument("--mirror", required=True, help="address of MNIST's files")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args()
    run_all(options.mirror, options.out, epochs=options.epochs, batch_size=options.batch_size)


if __name__ == "__main__":
    main()
