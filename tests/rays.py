"""Ray instances that the test process itself starts or joins."""

import contextlib
import secrets
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def token_of_its_own() -> Iterator[pytest.MonkeyPatch]:
    """Give the Rays inside the block a token: a process reads it once, so what it read before is forgotten."""
    from ray._private.authentication_test_utils import reset_auth_token_state

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RAY_ADDRESS", raising=False)
            patch.setenv("RAY_AUTH_MODE", "token")
            patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
            reset_auth_token_state()
            yield patch
    finally:
        reset_auth_token_state()  # after the variables are back, since it reads the mode
