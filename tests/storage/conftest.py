"""Roots of both kinds, and commands in this process."""

import dataclasses
from collections.abc import Callable

import pytest

from flows.__main__ import main
from storage.uri import Root


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: list[str]
    err: list[str]


Ask = Callable[..., Answer]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Types a command and reads the answer."""

    def ask(*words: str) -> Answer:
        capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        output = capsys.readouterr()
        return Answer(code, output.out.splitlines(), output.err.splitlines())

    return ask


@pytest.fixture
def root(each_root: Root) -> Root:
    """An empty storage root: what storage promises holds on a disk and on S3."""
    return each_root
