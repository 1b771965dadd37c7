"""What to do next, by the findings of a report that most often cost accuracy: rare classes, confusions, few photos."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from storage.terminal import count
from tasks.report_page.more_photos import MorePhotos

_FEW = 20
"""Training images below which a class is rare."""
_CONFUSED, _LEAST = 0.1, 2
"""Share of a class's test rows, and number of them, from which a confusion is worth a look."""
_NAMED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextStep:
    """A finding, and what to do about it."""

    finding: str
    advice: str
    section: str
    """Name of the section with the details."""
    command: str = ""


def find(
    *,
    train_counts: Mapping[str, int],
    confused: Sequence[tuple[int, float, str, str]],
    more_photos: MorePhotos | None,
) -> Iterator[NextStep]:
    """Yield at most one step of each kind.

    Args:
        train_counts: Training images of each class.
        confused: Number, share of the true class, true and predicted class of each confusion, most frequent first.
        more_photos: What a probe says about the number of photos.
    """
    if rare := sorted((number, name) for name, number in train_counts.items() if number < _FEW)[:_NAMED]:
        names = ", ".join(f"{name} ({number})" for number, name in rare)
        yield NextStep(
            finding=f"Few training images: {names}.", advice="Add photos of these classes first.", section="data"
        )
    for number, share, label, prediction in confused[:1]:
        if number >= _LEAST and share >= _CONFUSED:
            yield NextStep(
                finding=f"The most frequent mistake: {label} taken for {prediction}, {count(number, 'time')}.",
                advice="Compare the photos of both. Find wrong labels with",
                command="data-to-model audit FOLDER",
                section="mistakes",
            )
    if more_photos and more_photos.help:
        yield NextStep(
            finding=f"{more_photos.verdict[0].upper()}{more_photos.verdict[1:]}.",
            advice="Of unlabeled photos, find those to label first with",
            command="data-to-model next FOLDER",
            section="more-photos",
        )
