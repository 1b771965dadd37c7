"""What a wrong command line probably meant."""

import os
import re
import shlex
from collections.abc import Iterator, Sequence

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
    if words[0] in ("run", "predict") and message.startswith(("Got unexpected extra", "Missing option '--data'")):
        meant = next(_options_meant(words, extra=message.partition("(s) (")[2]), "")
        return f"{message} (did you mean {meant}?)" if meant else message
    return message


def _options_meant(words: Sequence[str], *, extra: str) -> Iterator[str]:
    """Yield for each of the `words` without an option, such as those in `extra`, the option that it may belong to."""
    for first, before, word in zip(["", *words], words, words[1:], strict=False):
        if word.startswith("-") or (before.startswith("-") and word not in extra):
            continue
        if first == "--set" and "=" not in before:
            yield f"--set {before}={word}"
        elif "=" in word:
            yield f"--set {word}"
        elif "/" in word or os.path.exists(word):
            yield f"--data {shlex.quote(word)}"
