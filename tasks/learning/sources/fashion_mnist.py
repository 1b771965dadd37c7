"""Fashion-MNIST (Xiao, Rasul, Vollgraf): 60,000 training and 10,000 test pictures of clothes, in MNIST's format."""

from tasks.learning.sources import Source
from tasks.learning.sources.mnist import files_of, read_idx

# The MD5 sums and the mirror are those of torchvision.datasets.FashionMNIST; the SHA-256 sums are of the same files.
SOURCE = Source(
    name="fashion-mnist",
    files=files_of(
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        ("25c81989df183df01b3e8a0aad5dffbe", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        ("bef4ecab320f06d8554ea6380940ec79", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        ("bb300cfdad3c16e7a12a480ee83cd310", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    classes=(
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle-boot"),
    ),
    image_shape=(28, 28, 1),
    read=read_idx,
)
