"""A decision about a champion, as the registry records it."""

import datetime
from collections.abc import Callable
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ValidationInfo, field_validator

from storage.accuracy_difference import Difference
from storage.uri import URI, CheckpointURI, EvaluationURI


class Decision(BaseModel, frozen=True, extra="forbid"):
    """One decision of the gate or of a user: the champion from now on, and the reason.

    Results are URIs here and references in storage: as context of the validation, pass a function that resolves them.
    """

    number: int
    """Number of the decision, from 1, without gaps."""
    champion: CheckpointURI | None
    """The champion after this decision; none if no checkpoint was good enough so far."""
    weights: str | None = None
    """SHA-256 of the champion's weights; none if unknown, or if the champion stays."""
    challenger: CheckpointURI
    """The checkpoint that was judged."""
    evaluation: EvaluationURI | Literal[""]
    """The evaluation with the challenger's metrics; empty if it was promoted by hand."""
    promoted: bool
    withdraws: CheckpointURI | None = None
    """The champion that a rollback removes; none for every other decision."""
    undoes: int | None = None
    """Number of the promotion that this entry revokes because its checkpoint had been deleted by then."""
    reason: str
    """One sentence for users."""
    gate: dict[str, Any]
    metrics: dict[str, Any]
    differences: dict[str, Difference] = {}
    """Difference of the accuracies per rival (`champion`, `best`); empty without rivals."""
    test_rows: str | None = None
    """Digest of the test rows; none if it was promoted by hand, or if the predictions no longer exist."""
    num_excluded: int = 0
    """Test rows that did not count, since a compared model was trained or validated on their images."""
    num_compared_before: int = 0
    """Other models that were compared with a champion on the same test rows before this decision."""
    new_classes: tuple[str, ...] = ()
    """Classes of the test rows that the champion does not know."""
    gone_classes: tuple[str, ...] = ()
    """Classes that the champion knows but the test rows lack."""
    event: str | None = None
    """Id of the event that announces the decision, drawn with the decision; none if there is no event."""
    decided: AwareDatetime | None = None
    author: str | None = None
    """User or deployment, and run, that decided."""

    @field_validator("champion", "challenger", "evaluation", "withdraws", mode="before")
    @classmethod
    def _resolved(cls, value: object, about: ValidationInfo) -> object:
        resolve: Callable[[str], URI] | None = about.context
        return resolve(value) if resolve and value and isinstance(value, str) else value

    @property
    def verdict(self) -> str:
        """One word: `promoted`, `rejected`, `rollback` or `revoked`."""
        if self.withdraws or self.undoes:
            return "rollback" if self.withdraws else "revoked"
        return "promoted" if self.promoted else "rejected"

    def made_by(self, author: str | None) -> "Decision":
        """Return a copy, made now by `author`."""
        return self.model_copy(update={"author": author, "decided": datetime.datetime.now(datetime.UTC)})
