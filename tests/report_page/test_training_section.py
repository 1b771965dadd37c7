"""What the report page says of the training: its first images, and for what each epoch waited."""

import dataclasses

import pytest

from tasks.report_page import ReportData, render
from tests.report_page.test_report_page import Page, fake_data


@pytest.fixture
def data() -> ReportData:
    return fake_data()


def test_every_epoch_shows_its_time_and_what_was_waited_for(data: ReportData) -> None:
    text = Page(render(data)).text
    assert "Epoch Time Waiting for data Waiting for checkpoints 1 31.0 s 0.010 0.000 2 32.0 s 0.097 0.002" in text
    assert text.count("Waiting for data took 10 % of epoch 2: try --set loader=resident") == 1


def test_training_images_are_shown_with_their_classes_and_may_be_missing(data: ReportData) -> None:
    alternatives = [image["alt"] or "" for image in Page(render(data)).all("img")]
    expected = [f"Training image {number}: class {name}" for number, (_, name) in enumerate(data.training_images, 1)]
    assert [text for text in alternatives if text.startswith("Training")] == expected
    assert "training images" not in Page(render(dataclasses.replace(data, training_images=()))).text


def test_notes_on_the_training_are_shown(data: ReportData) -> None:
    note = (
        "the training ran on different hardware or versions, so its last digits are not reproducible: torch 1; torch 2"
    )
    assert "The training ran on different hardware" in Page(render(dataclasses.replace(data, notes=(note,)))).text
