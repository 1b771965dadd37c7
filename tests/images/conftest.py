"""A storage root with a champion, for images to predict."""

from tests.learning.conftest import digits
from tests.planning.conftest import models

__all__ = ["digits", "models"]
