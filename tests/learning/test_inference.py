"""A trained model as a function from pictures to probabilities."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.kinds import CheckpointURI
from storage.uri import Root
from tasks.learning import decode, inference
from tasks.learning.sources import Split
from tests.committed import promote
from tests.image_folder import encoded, picture
from tests.learning import training


@pytest.fixture(scope="module")
def root(digits: dict[str, Split], tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A storage root whose champion of `mnist` has seen some digits."""
    root = Root(str(tmp_path_factory.mktemp("elsewhere") / "data"))
    promote(root, "mnist", commit_model(root, digits, precision="fp32"))
    return root


def commit_model(root: Root, digits: dict[str, Split], *, precision: str) -> CheckpointURI:
    recipe = training.recipe(model="small-cnn", epochs=1)
    trainer = training.trainer(recipe, training.rows(digits["train"], 0, 128), training.rows(digits["test"], 0, 32))
    return training.commit(trainer, root, "mnist-resnet18", precision=precision)


@pytest.fixture(scope="module")
def model(root: Root) -> inference.Model:
    return inference.load("champion:mnist", storage=str(root))


def test_arrays_and_tensors_of_the_models_shape_give_the_same(model: inference.Model, digits: dict[str, Split]) -> None:
    pixels = digits["test"].images[:3]
    expected = model(torch.from_numpy(pixels.copy()))
    pixels.flags.writeable = False
    assert torch.equal(model(pixels), expected)
    assert torch.equal(model(pixels[:, ::-1][:, ::-1]), expected), "not contiguous"


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 28, 28, 1), np.float32), r"\(N, 28, 28, 1\), got float32 of shape \(2, 28, 28, 1\)"),
        (np.zeros((28, 28, 1), np.uint8), r"got uint8 of shape \(28, 28, 1\)"),
        ("photo.jpg", "must be a tensor, a NumPy array, or a list of paths or bytes, got str"),
        ([np.zeros((5, 5), np.uint8)], "picture 0 must be a path or the bytes of a file, got ndarray"),
    ],
    ids=["floats", "one image", "text", "pixels"],
)
def test_other_images_are_refused_in_one_line(model: inference.Model, images: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        model(images)
    assert "\n" not in str(caught.value)


def test_pictures_are_resized_to_the_very_pixels_that_ingest_makes_of_their_files(
    model: inference.Model, tmp_path: Path
) -> None:
    for name in ("a.png", "b.jpg", "c.webp"):
        picture(7, 1).save(tmp_path / name)
    contents = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    expected = [
        np.frombuffer(decode.decoded(content, 28, 1).pixels, np.uint8).reshape(28, 28, 1) for content in contents
    ]
    assert np.array_equal(model.prepare(sorted(tmp_path.iterdir())), expected)
    assert np.array_equal(model.prepare(contents), expected)
    assert torch.equal(model.prepare([]), torch.empty(0, 28, 28, 1, dtype=torch.uint8))


def test_model_computes_at_the_precision_in_which_it_was_evaluated(
    root: Root, digits: dict[str, Split], tmp_path: Path
) -> None:
    target = commit_model(Root(str(tmp_path)), digits, precision="bf16")
    model, evaluated = inference.load(target), inference.Inference(target, threads=1, device=torch.device("cpu"))
    images = torch.from_numpy(digits["test"].images[:64].copy())
    expected = torch.from_numpy(evaluated.probabilities(images.numpy()))
    difference = (model(images) - expected).abs().max()
    model.precision = "fp32"
    assert (evaluated.precision, difference) == ("bf16", pytest.approx(0, abs=1e-3))
    assert difference < (model(images) - expected).abs().max() / 2


def test_champion_without_a_name_is_the_only_one_of_the_usual_root(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_STORAGE", str(root))
    assert torch.equal(inference.load().classifier.mean, inference.load("champion:mnist").classifier.mean)
    with pytest.raises(ValueError, match="has no champion; train a model first: data-to-model run$"):
        inference.load("champion", storage=str(tmp_path))


def test_a_picture_that_cannot_be_read_is_named_with_the_reason(model: inference.Model, tmp_path: Path) -> None:
    path = tmp_path / "cut off.jpg"
    path.write_bytes(encoded(3, 0, "JPEG")[:400])
    with pytest.raises(ValueError, match=r"cut off\.jpg cannot be used: truncated$"):
        model.prepare([str(path)])
    with pytest.raises(ValueError, match="^picture 1 cannot be used: empty file$"):
        model.prepare([encoded(3, 0), b""])


@pytest.mark.parametrize(
    ("is_padded", "expected", "later"),
    [(False, [512, 256, *[128] * 4, 88], [128, 22]), (True, [320, *[160] * 4], [160])],
    ids=["ragged", "padded"],
)
def test_batches_start_large_and_are_halved_until_they_fit(
    root: Root,
    digits: dict[str, Split],
    monkeypatch: pytest.MonkeyPatch,
    is_padded: bool,
    expected: list[int],
    later: list[int],
) -> None:
    batches = computing(root, is_padded=is_padded)
    images = np.concatenate([digits["test"].images[:300]] * 2)
    whole = batches.probabilities(images)
    sizes, forward = list[int](), batches.model.forward

    def limited(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        if len(images) > 200:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(images)

    monkeypatch.setattr(batches.model, "forward", limited)
    assert np.allclose(batches.probabilities(images), whole, atol=1e-6)
    assert sizes == expected
    sizes.clear()
    batches.probabilities(images[:150])
    assert sizes == later, "later parts do not try again what did not fit"


def test_padded_batches_of_one_shape_give_the_rows_of_others(root: Root, digits: dict[str, Split]) -> None:
    padded, ragged = (computing(root, is_padded=is_padded) for is_padded in (True, False))
    sizes = list[int]()
    padded.model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    pixels = np.concatenate([digits["test"].images[:300]] * 5)
    pixels.flags.writeable = False
    for number in (1200, 1201, 3, 0, 700):
        rows = padded.predictions(pixels[:number])
        assert rows.shape == (number, 10)
        np.testing.assert_allclose(rows, ragged.predictions(pixels[:number]), atol=1e-6)
    assert set(sizes) == {448}, "as few batches as fit, with little padding; a small part does not change their shape"


def computing(root: Root, *, is_padded: bool) -> inference.Inference:
    uri = CheckpointURI(root.child("checkpoints/mnist-resnet18-0123456789ab"))
    return inference.Inference(uri, threads=1, device=torch.device("cpu"), is_padded=is_padded)
