"""Thumbnails of 288 bytes, by which near duplicates are found: re-encoded, resized or hardly changed copies.

A perceptual hash of the thumbnail (pHash's idea, Klinger and Starkweather 2010: the signs of the lowest frequencies of
a discrete cosine transform) proposes pairs, the thumbnails themselves decide. So 8 bytes of each image are in memory.
"""

from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

SIDE = 16
"""Pixels per side of the gray thumbnail."""
_COLOUR_SIDE = 4
SIZE = SIDE**2 + 2 * _COLOUR_SIDE**2
"""Bytes of a thumbnail: gray pixels, then the two channels of colour (YCbCr)."""
_BANDS = 4
"""Bands of 16 bits of a hash; images are compared if one of them is equal."""
_NEIGHBOURS = 16
"""Images with an equal band that an image is compared with, in the order of the other bands."""
_MAX_BITS = 16
"""Most bits in which the hashes of near duplicates differ."""
MAX_DISTANCE = 0.15
"""Largest `distance` of near duplicates. 99 % of the copies of photos have less than 0.1; of all pairs of CIFAR-10's
60,000 images, six have less than 0.15."""
_AT_ONCE = 2**11
"""Thumbnails to hash, or pairs to compare, at a time."""


def of_image(image: Image.Image) -> bytes:
    """Return the thumbnail of a whole image, squeezed to a square: copies keep it in another size or aspect ratio."""
    small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    gray, *colours = small.convert("YCbCr").split()
    return gray.tobytes() + b"".join(colour.reduce(SIDE // _COLOUR_SIDE).tobytes() for colour in colours)


def brightness(thumbnails: np.ndarray) -> np.ndarray:
    """Return the mean gray, 0 to 1, of each thumbnail, uint8 (N, SIZE)."""
    return np.asarray(thumbnails[:, : SIDE**2].mean(1) / 255)


def hashes(thumbnails: np.ndarray) -> np.ndarray:
    """Return the hash, int64, of each thumbnail, uint8 (N, SIZE); computed in integers, so equal on all machines."""
    return np.concatenate([_hashes(few) for few in np.split(thumbnails, range(_AT_ONCE, len(thumbnails), _AT_ONCE))])


def _hashes(thumbnails: np.ndarray) -> np.ndarray:
    steps = np.arange(SIDE)
    cosines = np.round(2**10 * np.cos(np.pi * (2 * steps + 1) * steps[:, None] / (2 * SIDE))).astype(np.int64)
    down, across = (grid.ravel() for grid in np.indices((SIDE, SIDE)))
    lowest = np.lexsort((down, down + across))[1:65]  # without the mean
    order = lowest.reshape(-1, _BANDS).T.ravel()  # each band has low and high frequencies
    gray = thumbnails[:, : SIDE**2].reshape(-1, SIDE, SIDE).astype(np.int64)
    bits = (cosines @ gray @ cosines.T).reshape(-1, SIDE**2)[:, order] > 0
    return np.frombuffer(np.packbits(bits, axis=1).tobytes(), ">i8").astype(np.int64)


def find_pairs(hashes: np.ndarray, read: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return near duplicates as sorted pairs of row numbers (P, 2), the smaller one first, and their distances (P,).

    Of many images that are all alike, each is paired with some others.

    Args:
        hashes: Hash of each row, int64 (N,).
        read: Returns the thumbnails of rows, whose numbers ascend; called once.
    """
    pairs = np.empty((0, 2), np.int64)
    for band in range(_BANDS):
        pairs = np.unique(np.concatenate([pairs, *_equal_in_band(hashes.view(np.uint64), band)]), axis=0)
    rows = np.unique(pairs)
    thumbnails, place = read(rows), np.searchsorted(rows, pairs)
    distances = [
        distance(thumbnails[few[:, 0]], thumbnails[few[:, 1]])
        for few in np.split(place, range(_AT_ONCE, len(place), _AT_ONCE))
    ]
    values = np.concatenate(distances)
    is_near = values <= MAX_DISTANCE
    return pairs[is_near], values[is_near]


def distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the distance of thumbnails (N, SIZE) in pairs: 0 for equal ones, about 1.4 for unrelated ones.

    It is the root mean square of the differences in gray or in colour, the larger one, relative to the contrast (the
    standard deviation of gray) of the image that has less of it.
    """
    differences = (first.astype(np.int64) - second.astype(np.int64)) ** 2
    gray, colour = differences[:, : SIDE**2].mean(1), differences[:, SIDE**2 :].mean(1)
    contrast = np.minimum(*(some[:, : SIDE**2].astype(np.int64).var(1) for some in (first, second)))
    return np.asarray(np.sqrt(np.maximum(gray, colour) / np.maximum(contrast, 1)))


def groups(pairs: np.ndarray, num_rows: int) -> np.ndarray:
    """Return for each row the smallest row of its group, (N,): rows that pairs connect, also over other rows."""
    first = np.arange(num_rows)
    while len(pairs):
        lowest = first[pairs].min(1)
        before = first.copy()
        for side in (0, 1):
            np.minimum.at(first, first[pairs[:, side]], lowest)
        first = first[first]
        if (first == before).all():
            break
    return first


def _equal_in_band(hashes: np.ndarray, band: int) -> Iterator[np.ndarray]:
    shift = np.uint64(16 * band)
    turned = (hashes << shift) | (hashes >> (np.uint64(64) - shift)) if band else hashes
    order = np.argsort(turned, kind="stable")
    turned, own = turned[order], (turned[order] >> np.uint64(48)).astype(np.uint16)
    for step in range(1, min(_NEIGHBOURS + 1, len(own))):
        different = np.bitwise_count(turned[step:] ^ turned[:-step])
        near = np.flatnonzero((own[step:] == own[:-step]) & (different <= _MAX_BITS))
        yield np.sort(np.stack([order[near], order[near + step]], axis=1), axis=1)
