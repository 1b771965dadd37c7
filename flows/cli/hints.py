"""What a wrong command line probably meant."""

import os
import re
import shlex
from collections.abc import Sequence

_OTHERS_WORDS = {"train": "run", "fit": "run", "list": "ls", "help": "--help", "evaluate": "run", "infer": "predict"}
"""Commands by names that are usual elsewhere."""


def hint(message: str, words: Sequence[str]) -> str:
    """Add to a message about the `words` of a command what their user probably meant."""
    if words[0] in ("run", "audit", "backfill") and (option := re.match(r"No such option: --(\S+)", message)):
        from tasks.learning import recipes

        field = recipes.field_meant(option[1].replace("-", "_"))
        return f"{option[0]} (did you mean --set {field}=...?)" if field else message
    if message == f"No such command {words[0]!r}" and (words[0] in _OTHERS_WORDS or os.path.exists(words[0])):
        return f"{message}. Did you mean {_OTHERS_WORDS.get(words[0], f'run --data {shlex.quote(words[0])}')!r}?"
    if words[0] in ("run", "predict") and (extra := re.match(r"Got unexpected extra.*\((\S+)\)$", message)):
        name = "--set" if "=" in extra[1] else "--data" if os.path.exists(extra[1]) else ""
        return f"{message} (did you mean {name} {shlex.quote(extra[1])}?)" if name else message
    return message
