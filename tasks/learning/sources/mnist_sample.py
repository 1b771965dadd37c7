"""Sample of MNIST that comes with the project: the first 6,000 training and 1,000 test digits, in the same format."""

from pathlib import Path

from tasks.learning.sources import Source
from tasks.learning.sources.mnist import CLASSES, files_of, read_idx

FOLDER = Path(__file__).parent / "mnist_sample_files"

SOURCE = Source(
    name="mnist-sample",
    files=files_of(
        ("1ac03de7ecb10d80269b8abd182afbd4", "bbfa6dc798f1305370a441b004c94e5e9cf9f0576ddd29c9a5ad02976a7911b2"),
        ("59fdc8a419aa8ad3df0ff5c74064416a", "9bba5e27d271c9549416874862335dc707b873c0cacbd9ee0730507f613b19ca"),
        ("c3379f275b566375ab4528689c1795c4", "c38842f3fc122aeb56961328eacf41c4315fb33e95ce0e9d0c97f3bd3d5b62c6"),
        ("1d88dbe1fbee9022616057ede4463181", "689b4d1da0ae1049125d2f91e157009a132a2a1e76b45a178dc0b359e1f74255"),
    ),
    mirrors=(FOLDER.as_uri() + "/",),
    classes=CLASSES,
    image_shape=(28, 28, 1),
    read=read_idx,
    notice="the bundled sample of 7,000 MNIST digits, not all of MNIST",
)
