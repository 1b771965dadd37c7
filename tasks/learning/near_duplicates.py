"""Near duplicates: images of the same picture that was cropped, moved, turned, mirrored, brightened or saved again.

The nearest neighbors propose pairs: by embedding, and by a tiny gray picture in each of its eight turns. The pixels
decide. One picture is laid on the other by a turn, a scale and a shift: roughly where their spectra correlate best,
then exactly by Gauss-Newton steps (Lucas and Kanade 1981). What both show must correlate, and so must its fine detail.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional

from storage import process

SIDE = 64
"""Pixels per side of the gray pictures that are compared."""
_NEIGHBORS = 5
"""Pairs that an image proposes, by its embedding and by its tiny picture in each turn."""
_LEAST_COSINE = 0.5
"""Least cosine of the embeddings of a proposed pair; 99 % of the copies of photos have more."""
_LEAST_TINY = 0.9
"""The same of tiny pictures: copies of photos in gray, and turned ones, have more."""
_LEAST_ROUGH = 0.4
"""Least correlation at the rough place, of pairs that are laid on each other exactly."""
_LEAST_WHOLE, _LEAST_DETAIL = 0.9, 0.85
"""Least correlation of near duplicates, and of their detail (docs/image-problems.md has what they find)."""
_LEAST_COMMON = 0.5
"""Least share of a picture that the other shows as well."""
_ROUGH, _TINY = 32, 16
"""Pixels per side, for the rough place and for tiny pictures."""
_REACH = 8
"""Largest shift of the rough place, in its pixels."""
_SCALES = (1.0, 0.9, 0.8)
"""Shares of a side at which the middle of a picture is compared with all of another one."""
_STEPS = 8
_AT_ONCE = 128
"""Gauss-Newton steps, and pairs that are compared at a time."""
_COSINES = 2**22
"""Cosines in the memory of a thread, about: with the order of each row, 48 MiB."""
_UPRIGHT = [[[x, 0.0], [0.0, y]] for x in (1.0, -1.0) for y in (1.0, -1.0)]
_TURNS = torch.tensor(_UPRIGHT + [rows[::-1] for rows in _UPRIGHT])
"""The eight turns and reflections of a square, the first one none of them; float32 (8, 2, 2)."""
_EVERYWHERE = torch.ones(1, 1)
"""Weight of pixels."""


def shrink(pixels_NHWC: np.ndarray) -> np.ndarray:
    """Return gray pictures, uint8 (N, SIDE, SIDE), of images, uint8."""
    gray = torch.from_numpy(pixels_NHWC.mean(3, dtype=np.float32))[:, None]
    small = functional.interpolate(gray, (SIDE, SIDE), mode="bilinear", antialias=True)
    return np.asarray(small[:, 0].round().clamp(0, 255).to(torch.uint8).numpy())


def find_pairs(
    directions: np.ndarray,
    small: np.ndarray,
    *,
    threads: int,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return near duplicates as sorted pairs of row numbers (P, 2), the smaller one first, and their distances (P,).

    The distance is 0 for equal details, and at most 0.15. Of many images that are all alike, each is paired with some.

    Args:
        directions: Embedding of each row, scaled to length 1, float32 (N, dimensions).
        small: What `shrink` gives for the rows.
        threads: Number of threads; it changes no result.
        progress: Gets what is counted, how much of it is done, and the total.
    """
    proposed, details = list[np.ndarray](), list[np.ndarray]()
    with threadpool_limits(1):  # of a product of matrices: it changes no bit
        for found in _proposed(directions, small, threads):
            proposed.append(found)
            progress("searches for near duplicates", len(proposed), 1 + len(_TURNS))
    pairs = np.unique(np.concatenate(proposed), axis=0)
    chunks = np.split(pairs, range(_AT_ONCE, len(pairs), _AT_ONCE))
    for found in process.in_threads(functools.partial(_details, small), chunks, threads=threads):
        details.append(found)
        progress("pairs compared", min(len(details) * _AT_ONCE, len(pairs)), len(pairs))
    correlations = np.concatenate(details)
    is_near = correlations >= _LEAST_DETAIL
    return pairs[is_near], 1 - correlations[is_near]


def _proposed(directions: np.ndarray, small: np.ndarray, threads: int) -> Iterator[np.ndarray]:
    """Yield pairs of neighbors, the smaller row first."""
    yield _neighbors(directions, directions, least=_LEAST_COSINE, threads=threads)
    tiny = functional.avg_pool2d(torch.from_numpy(small).float(), SIDE // _TINY)
    for turn in _TURNS:
        turned = _warped(tiny[:, None], turn.expand(len(tiny), 2, 2), side=_TINY)
        of_turn, upright = (_standard(picture.flatten(1), _EVERYWHERE)[0].numpy() / _TINY for picture in (turned, tiny))
        yield _neighbors(of_turn, upright, least=_LEAST_TINY, threads=threads)


def _neighbors(queries: np.ndarray, others: np.ndarray, *, least: float, threads: int) -> np.ndarray:
    size = max(16, _COSINES // len(others))

    def of_block(start: int) -> np.ndarray:
        distances = queries[start : start + size] @ others.T
        np.negative(distances, out=distances)
        rows = np.arange(len(distances))
        distances[rows, start + rows] = 1
        count = min(_NEIGHBORS, len(others))
        best = np.argpartition(distances, count - 1, axis=1)[:, :count]
        row, number = np.nonzero(np.take_along_axis(distances, best, 1) <= -least)
        return np.sort(np.stack([start + row, best[row, number]], axis=1), axis=1)

    return np.concatenate(list(process.in_threads(of_block, range(0, len(queries), size), threads=threads)))


@torch.inference_mode()
def _details(small: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the correlation of the details of each pair of rows, (P,), 0 if it is no near duplicate anyway."""
    torch.set_num_threads(1)  # of this thread: the others compare other pairs
    first, second = (torch.from_numpy(small[pairs[:, side]]).float()[:, None] for side in (0, 1))
    details = np.zeros(len(pairs))
    if not len(pairs):
        return details
    rough, turn, place = _rough_place(first, second)
    is_alike = rough >= _LEAST_ROUGH
    if is_alike.any():
        turned = _warped(first[is_alike], turn[is_alike])
        details[is_alike.numpy()] = _compared(turned, second[is_alike], place[is_alike]).numpy()
    return details


def _rough_place(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest correlation of pictures (P, 1, SIDE, SIDE) at any turn, scale and shift, and where it is.

    That is the turn of the first picture, (P, 2, 2), and the second one's place on it: scale, 0 and shift, (P, 4).
    """
    blurred = [picture - _blurred(picture, SIDE / 11) for picture in (first, second)]
    spectra = [{scale: _spectrum(picture, torch.eye(2) * scale) for scale in _SCALES} for picture in blurred]
    hypotheses = [(turn, 1.0, 1.0, _spectrum(blurred[0], turn)) for turn in _TURNS]
    hypotheses += [(_TURNS[0], scale, 1.0, spectra[0][scale]) for scale in _SCALES[1:]]
    hypotheses += [(_TURNS[0], 1.0, scale, spectra[0][1.0]) for scale in _SCALES[1:]]
    best = torch.full((len(first),), -1.0)
    turns, place = torch.zeros(len(first), 2, 2), torch.zeros(len(first), 4)
    for turn, own, other, spectrum in hypotheses:
        product = spectrum.conj() * spectra[1][other]
        correlations = torch.fft.irfft2(product, s=(_ROUGH, _ROUGH)).roll((_REACH, _REACH), (1, 2)) / _ROUGH**2
        count = 2 * _REACH + 1
        highest, index = correlations[:, :count, :count].flatten(1).max(1)
        shift = torch.stack([index % count - _REACH, index // count - _REACH], 1) * (-own / (_ROUGH / 2))
        here = torch.cat([torch.tensor([[own / other, 0.0]]).expand(len(first), 2), shift], 1)
        is_better = (highest > best)[:, None]
        best = torch.maximum(best, highest)
        turns, place = torch.where(is_better[:, None], turn, turns), torch.where(is_better, here, place)
    return best, turns, place


def _spectrum(pictures: Tensor, matrix: Tensor) -> Tensor:
    small = _warped(pictures, matrix.expand(len(pictures), 2, 2), side=_ROUGH)[:, 0]
    spectrum: Tensor = torch.fft.rfft2(_standard(small.flatten(1), _EVERYWHERE)[0].view_as(small))
    return spectrum


def _compared(first: Tensor, second: Tensor, place: Tensor) -> Tensor:
    """Lay the first pictures exactly on the second ones; return the correlation of their details, or 0."""
    smooth, target = _blurred(first, 1), _blurred(second, 1)
    down, across = torch.gradient(smooth, dim=(2, 3))
    stack = torch.cat([smooth, across * (SIDE / 2), down * (SIDE / 2)], 1)
    x, y = _grid(torch.eye(2, 3)[None], SIDE)[0].flatten(0, 1).T
    for _ in range(_STEPS):
        grid = _grid(_matrices(place), SIDE)
        weight = _inside(grid).flatten(1)
        sampled, dx, dy = _sampled(stack, grid).flatten(2).unbind(1)
        (own, deviation), (other, _) = (_standard(values, weight) for values in (sampled, target.flatten(1)))
        slopes = torch.stack([dx * x + dy * y, dy * x - dx * y, dx, dy], 1) / deviation[:, None]
        slopes = slopes - (slopes * weight[:, None]).sum(2, keepdim=True) / weight.sum(1).clamp(min=1)[:, None, None]
        slopes = slopes * weight[:, None]
        normal = slopes @ slopes.mT + torch.eye(4) * (1e-4 * SIDE**2)
        step = torch.linalg.solve(normal, slopes @ (other - own)[:, :, None])[:, :, 0]
        place = place + step.clamp(-0.1, 0.1)
    grid = _grid(_matrices(place), SIDE)
    inside = _inside(grid)
    laid, weight = _sampled(first, grid), inside.flatten(1)
    count = weight.sum(1).clamp(min=1)
    whole = [_standard(picture.flatten(1), weight)[0] for picture in (laid, second)]
    detail = [_detail(picture, inside[:, None]).flatten(1) for picture in (laid, second)]
    powers = [values.square().sum(1) + count for values in detail]  # a level of noise has no detail
    is_near = ((whole[0] * whole[1]).sum(1) / count >= _LEAST_WHOLE) & (weight.mean(1) >= _LEAST_COMMON)
    return torch.where(is_near, (detail[0] * detail[1]).sum(1) / (powers[0] * powers[1]).sqrt(), 0.0)


def _matrices(place: Tensor) -> Tensor:
    """Return the affine matrices (P, 2, 3) of a scale, a sine and a shift."""
    scale, sine, *shift = place.T
    return torch.stack([scale, -sine, shift[0], sine, scale, shift[1]], 1).view(-1, 2, 3)


def _grid(matrices: Tensor, side: int) -> Tensor:
    grid: Tensor = functional.affine_grid(matrices, [len(matrices), 1, side, side], align_corners=False)
    return grid


def _inside(grid: Tensor) -> Tensor:
    return (grid.abs() <= 1).all(-1).float()


def _sampled(pictures: Tensor, grid: Tensor) -> Tensor:
    return functional.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def _warped(pictures: Tensor, matrices: Tensor, *, side: int = SIDE) -> Tensor:
    return _sampled(pictures, _grid(functional.pad(matrices, (0, 1)), side))


def _standard(values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return values (P, pixels) with mean 0 and deviation 1 where `weight` is 1, 0 elsewhere, and the deviations."""
    weight = weight.expand_as(values)
    count = weight.sum(1, keepdim=True).clamp(min=1)
    centered = (values - (values * weight).sum(1, keepdim=True) / count) * weight
    deviation = (centered.square().sum(1, keepdim=True) / count).sqrt().clamp(min=1)
    return centered / deviation, deviation


def _detail(pictures: Tensor, inside: Tensor) -> Tensor:
    """Return what a blur takes away, of the part that is inside."""
    weight = _blurred(inside, 2).clamp(min=1e-3)
    return (pictures - _blurred(pictures * inside, 2) / weight) * inside


def _blurred(pictures: Tensor, deviation: float) -> Tensor:
    reach = int(3 * deviation)
    kernel = torch.exp(-(torch.arange(-reach, reach + 1.0) ** 2) / (2 * deviation**2))
    kernel = kernel / kernel.sum()
    padded = functional.pad(pictures, (reach,) * 4, mode="replicate")
    return functional.conv2d(functional.conv2d(padded, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
