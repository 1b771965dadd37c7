"""The hand-written side: one plain PyTorch script without a framework, as somebody who knows how would write it.

It does all of the pipeline's work: download, train, evaluate, predict, Parquet.

    python -m benchmarks.plain --mirror DIR --out DIR

Model, precision and threads are those of the recipe; nothing of this project is used.
"""

import argparse
import gzip
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

CLASSES, MAX_SHIFT = 10, 2
BF16 = torch.cpu.get_capabilities().get("avx512_bf16", False)


def download(mirror: str, prefix: str) -> tuple[Tensor, Tensor]:
    """The images (uint8, NHWC) and labels (int64) of one split."""
    images, labels = (
        gzip.decompress(urlopen(f"{mirror}/{prefix}-{kind}-ubyte.gz").read()) for kind in ("images-idx3", "labels-idx1")
    )
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28, 1)
    return torch.from_numpy(pixels.copy()), torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64))


def write_images(path: Path, images: Tensor, labels: Tensor) -> None:
    """Raw bytes of a fixed size, and the labels."""
    pixels = images.numpy()
    stored = pa.binary(int(np.prod(pixels.shape[1:])))
    column = pa.FixedSizeBinaryArray.from_buffers(stored, len(pixels), [None, pa.py_buffer(pixels)])
    table = pa.table({"image": column, "label": labels.numpy()})
    pq.write_table(table, path, compression="zstd", use_dictionary=["label"])


def write_predictions(path: Path, probabilities: Tensor, labels: Tensor) -> None:
    """One row for each image."""
    values = probabilities.numpy()
    columns = {"id": np.arange(len(values)), "label": labels.numpy(), "prediction": values.argmax(1)}
    columns |= {f"probability_{label}": values[:, label] for label in range(CLASSES)}
    pq.write_table(pa.table(columns), path, compression="zstd")


def new_model() -> nn.Module:
    """ResNet-18 for gray images, with random weights."""
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=CLASSES)
    model.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
    return model.to(memory_format=torch.channels_last) if BF16 else model


def shifted(images: Tensor) -> Tensor:
    """Each image moved by its own random offset."""
    batch, height, width, _ = images.shape
    offsets = torch.randint(0, 2 * MAX_SHIFT + 1, (2, batch, 1))
    padded = pad(images, (0, 0, MAX_SHIFT, MAX_SHIFT, MAX_SHIFT, MAX_SHIFT))
    rows, columns = offsets[0] + torch.arange(height), offsets[1] + torch.arange(width)
    return padded[torch.arange(batch)[:, None, None], rows[:, :, None], columns[:, None, :]]


def run_all(mirror: str, out: Path, *, epochs: int, batch_size: int) -> None:
    """Everything, once, into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (images, labels), (test_images, test_labels) = download(mirror, "train"), download(mirror, "t10k")
    write_images(out / "train.parquet", images, labels)
    write_images(out / "test.parquet", test_images, test_labels)
    validation, train = torch.randperm(len(labels)).split([len(labels) // 10, len(labels) - len(labels) // 10])
    pixels = images[train].double()
    mean, std = float(pixels.mean()), float(pixels.std())
    torch.manual_seed(0)
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2, fused=True)
    steps = len(train) // batch_size
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps * epochs, pct_start=0.25)

    def logits_of(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=BF16):
            logits: Tensor = model((batch.permute(0, 3, 1, 2).float() - mean) / std)
        return logits.float()

    @torch.inference_mode()
    def predict(images: Tensor) -> Tensor:
        model.eval()
        return torch.cat([logits_of(batch).softmax(1) for batch in images.split(512)])

    best = float("inf")
    for epoch in range(1, epochs + 1):
        started = time.perf_counter()
        model.train()
        for rows in train[torch.randperm(len(train))[: steps * batch_size]].split(batch_size):
            loss = cross_entropy(logits_of(shifted(images[rows])), labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
        rate = steps * batch_size / (time.perf_counter() - started)
        error = float(-predict(images[validation]).gather(1, labels[validation][:, None]).log().mean())
        print(f"epoch {epoch}: validation loss {error:.4f}, images/s {rate:.1f}", flush=True)
        if error < best:
            best = error
            states = [part.state_dict() for part in (model, optimizer, scheduler)]  # all that is needed to resume
            torch.save(states, out / "best.pt")
    model.load_state_dict(torch.load(out / "best.pt", weights_only=True)[0])
    probabilities = predict(test_images)
    write_predictions(out / "predictions.parquet", probabilities, test_labels)
    print(f"test accuracy {(probabilities.argmax(1) == test_labels).float().mean():.4f}")


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
