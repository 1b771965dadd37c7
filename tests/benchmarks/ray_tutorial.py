"""The other side of `notebook`: training as Ray's tutorials do it, with their defaults.

Images are nested lists of ints in Parquet; `Dataset.map` turns each row into a PIL image and then into a tensor.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def write(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """One Parquet file with a nested list for each image."""
    rows = [{"image": image.tolist(), "label": int(label)} for image, label in zip(images[..., 0], labels, strict=True)]
    pd.DataFrame(rows).to_parquet(path)


def to_tensor(row: dict[str, Any]) -> dict[str, Any]:
    from PIL import Image
    from torchvision.transforms import Compose, Normalize, ToTensor

    transform = Compose([ToTensor(), Normalize((0.5,), (0.5,))])
    pixels = np.stack([np.asarray(line) for line in row["image"]]).astype(np.uint8)
    return {"image": transform(Image.fromarray(pixels)).numpy(), "label": row["label"]}


def train_func(config: dict[str, Any]) -> None:
    import ray.train
    import ray.train.torch
    import torch
    from torch import nn
    from torchvision.models import resnet18

    model = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
    model = ray.train.torch.prepare_model(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(config["epochs"]):
        total, steps = 0.0, 0
        for batch in shard.iter_torch_batches(batch_size=config["batch_size"]):
            loss = criterion(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), Path(folder, "model.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"loss": total / steps, "epoch": epoch}, checkpoint=checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ray_tutorial", description=__doc__)
    parser.add_argument("--parquet", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    arguments = parser.parse_args()
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init()
    started = time.perf_counter()
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"epochs": arguments.epochs, "batch_size": arguments.batch_size},
        scaling_config=ScalingConfig(num_workers=1),
        datasets={"train": ray.data.read_parquet(arguments.parquet).map(to_tensor)},
        run_config=RunConfig(storage_path=arguments.out, name="notebook"),
    )
    trainer.fit()
    print(f"seconds {time.perf_counter() - started}")


if __name__ == "__main__":
    main()
