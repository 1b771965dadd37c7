"""Images by the embeddings of a model: those to label next, and those most like another."""

import contextlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from storage import manifest, tables
from storage.kinds import PROBABILITY_PREFIX, CheckpointURI, DatasetURI, EmbeddingsURI, PredictionsURI
from tasks.images import embedding_rows, row_tables
from tasks.images.listing import NEW

_LEAST = 1e-6
"""Weight of an image whose class is certain."""


def next_to_label(
    predictions: PredictionsURI, embeddings: EmbeddingsURI, checkpoint: CheckpointURI, *, count: int
) -> pd.DataFrame:
    """Return id, split, file, row, class and probability of `count` new images to label next, the least certain first.

    Images that have a label, or that `checkpoint` was trained or judged on, are left out, as are copies. Raises
    `ValueError` if no image is left.
    """
    rows, seen = embedding_rows.read(embeddings), pa.array([], pa.binary(embedding_rows.DIGEST))
    with contextlib.suppress(FileNotFoundError):  # deleted since
        prepared = DatasetURI(manifest.load(checkpoint).parent("prepared", of=checkpoint))
        seen = row_tables.read_digests(prepared)["digest"].combine_chunks()
    is_open = (rows.labels < 0) & ~pc.is_in(rows.digests, value_set=seen).to_numpy()
    order = pc.sort_indices(rows.digests).to_numpy()  # names of files decide nothing
    order = order[is_open[order]]
    if not len(order):
        raise ValueError("FOLDER: each image has a label, or is one of the model's own; name a folder with others")
    order = order[np.sort(np.unique(rows.vectors[order], axis=0, return_index=True)[1])]
    predicted = tables.read_split(predictions, NEW).to_pandas().set_index("id").loc[rows.ids[order]]
    probabilities = predicted.filter(regex=f"^{PROBABILITY_PREFIX}").to_numpy()
    chosen = predicted.iloc[choose(probabilities, rows.vectors[order], count=count)].reset_index()
    images = pd.DataFrame({"id": chosen["id"], "class": chosen["class_name"], "probability": chosen["probability"]})
    return row_tables.with_files(images.assign(split=NEW), rows.dataset)


def choose(probabilities: np.ndarray, vectors: np.ndarray, *, count: int) -> np.ndarray:
    """Return the numbers of `count` images to label next, or of all if they are fewer, the least certain first.

    An image is uncertain if its two most probable classes are close. K-means, weighted by that, makes `count` groups of
    the images; each gives the one nearest to its center (Zhdanov, Diverse mini-batch active learning, 2019).

    Args:
        probabilities: float (N, classes), of a model.
        vectors: Embeddings by the model's backbone, float (N, dimensions); no two are equal.
        count: Images to choose.
    """
    points, top = embedding_rows.directions(vectors), np.sort(probabilities, 1)
    doubt = 1 - (top[:, -1] - top[:, -2])
    with threadpool_limits(1):  # the number of cores changes nothing
        groups = KMeans(min(count, len(points)), n_init=1, random_state=0).fit(points, sample_weight=doubt + _LEAST)
    distances = ((points - groups.cluster_centers_[groups.labels_]) ** 2).sum(1)
    chosen = pd.Series(distances).groupby(groups.labels_).idxmin().to_numpy()
    return np.asarray(chosen[np.argsort(-doubt[chosen], kind="stable")])


def most_similar(embeddings: EmbeddingsURI, query: EmbeddingsURI, *, count: int) -> pd.DataFrame:
    """Return id, split, file, row, class and similarity of the `count` images most like the first one of `query`.

    The similarity is the cosine of the angle between two embeddings.
    """
    rows, vector = embedding_rows.read(embeddings), embedding_rows.read(query).vectors[:1]
    similarities = embedding_rows.directions(rows.vectors) @ embedding_rows.directions(vector)[0]
    best = np.argsort(-similarities, kind="stable")[:count]
    classes = np.array(rows.classes, object)[rows.labels[best]]
    columns = {"id": rows.ids[best], "split": rows.splits[best], "class": classes, "similarity": similarities[best]}
    return row_tables.with_files(pd.DataFrame(columns), rows.dataset)
