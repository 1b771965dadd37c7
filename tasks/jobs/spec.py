"""Spec of a job: the stage to do and what it may take, as a JSON file in the stage's scratch."""

import hashlib
import re
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, SerializeAsAny

from storage import files
from storage.manifest import Damaged
from storage.uri import URI
from tasks.resources.needs import ANY, Limits, Needs

S = TypeVar("S")
_DIGESTED = re.compile(r".+-([0-9a-f]{64})\.json")


class JobSpec(BaseModel, Generic[S]):
    """What a job does, and what it may take: only `stage` decides its result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: SerializeAsAny[S]
    limits: Limits = Limits()
    needs: Needs = ANY
    """Resources that each worker requires, and the number of workers."""
    threads: int | None = None
    """Threads of each computing process; None: as many as Ray gives it CPUs."""

    def write(self) -> URI:
        """Write the spec to the stage's scratch, in a file whose name ends with its SHA-256; return its URI."""
        content = self.model_dump_json(indent=1).encode()
        stage: Any = self.stage
        name = f"{stage.kind.stage}-{hashlib.sha256(content).hexdigest()}.json"
        place: URI = stage.scratch.child(name)
        files.put(place, content)
        return place

    @classmethod
    def read(cls, place: URI) -> Self:
        """Read the spec at `place`; raise `Damaged` if its content has another SHA-256 than its name says.

        Scratch is storage: whoever can write there must not decide what a job does, or where. A name without a SHA-256,
        of a file that somebody wrote by hand, says nothing.
        """
        content = files.read(place)
        named = _DIGESTED.fullmatch(place.name)
        if named and named[1] != hashlib.sha256(content).hexdigest():
            raise Damaged(f"{place} is not what the run wrote (SHA-256), so the job did nothing; run again")
        return cls.model_validate_json(content)
