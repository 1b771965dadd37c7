"""Groups of images that get one split: near duplicates, or the files of one folder."""

import numpy as np
import pandas as pd

from storage import manifest
from tasks.images import embedding_rows, layout, row_tables
from tasks.learning import images
from tasks.stages import Preprocess


def keep_together(checked: pd.DataFrame, stage: Preprocess) -> pd.DataFrame:
    """Give all rows of a group one digest, so that they get one split, whatever the order of the rows.

    It is the smallest digest of near duplicates, and the digest of the name of a folder.
    """
    if stage.split.group == "none":
        return checked
    if stage.split.group == "near-duplicates" and not stage.embeddings:
        raise ValueError("group=near-duplicates needs embeddings of the raw dataset; make them by embed()")
    rows = pd.DataFrame({"split": checked["source"].astype(str), "id": checked["id"].astype(int)})
    named = row_tables.with_files(rows, stage.raw)
    own = checked["digest"].astype(np.int64)
    if stage.embeddings:
        group_of = embedding_rows.groups_of_files(stage.embeddings)
        groups = [group_of.get(file) for file in zip(named["file"], named["row"], strict=True)]
        shared = own.groupby(pd.Series(groups, index=own.index, dtype=object)).transform("min")
    else:
        classes = images.classes_of(manifest.load(stage.raw).columns["metadata"])
        of_folder = map(layout.digest_of_folder, named["file"], (classes[label] for label in checked["label"]))
        digests = [digest and int.from_bytes(digest[:8], "little", signed=True) for digest in of_folder]
        shared = pd.Series(digests, index=own.index, dtype=object)
    return checked.assign(digest=shared.where(shared.notna(), own).astype(np.int64))
