"""Difference of two models' accuracies: printed, and stored."""

from storage.decision import Difference


def test_all_of_it_is_said_in_a_line_and_read_again() -> None:
    found = Difference(
        metric="accuracy",
        num_rows=60,
        only_challenger=3,
        only_rival=2,
        difference=1 / 60,
        lower=-0.06738,
        upper=0.09969,
        p_value=1.0,
    )
    assert str(found) == (
        "difference in test accuracy +0.0167 (95 % interval -0.0674 to +0.0997, exact test p = 1); of 60 rows, 3 "
        "are correct only with this model, 2 only with the other"
    )
    assert Difference.model_validate_json(found.model_dump_json()) == found
