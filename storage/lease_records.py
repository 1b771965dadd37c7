"""Records of leases: a numbered file for each holder of a target; the highest number is the newest holder's."""

import contextlib
import datetime
import re

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from storage import files
from storage.manifest import Damaged
from storage.process import Process
from storage.uri import URI, Root

SHELF = "leases"
"""Folder below a root for the leases."""
_NAME = re.compile(r"([0-9]{6,})\.json")


class Record(BaseModel, frozen=True, extra="forbid"):
    """Content of a lease file: the holder of a lease."""

    target: URI
    """URI of the result that the holder makes."""
    generation: int = Field(ge=1)
    """Number of this holder among all holders of the target, from 1."""
    owner: str
    """Name of the holder, such as the id of its Ray job."""
    process: Process
    expires: AwareDatetime
    """Time at which the lease ends unless it is renewed."""
    uses: tuple[str, ...] = ()
    """References of the results that the holder reads, relative to the root; garbage collection keeps them."""
    released: bool = False

    @property
    def host(self) -> str:
        return self.process.host

    def is_live(self, *, at: datetime.datetime) -> bool:
        """Return whether others may not take the lease yet; `at` is this process's time before it read the record.

        A later time would be wrong: a renewal could have come in time, but after the record was read.
        """
        return not self.released and at < self.expires and not self.process.has_ended()

    def used(self, root: Root) -> list[URI]:
        """Return the URIs of the results that the holder reads; the lease lies below `root`."""
        return [root.child(path) for path in self.uses]


def names(root: Root) -> list[str]:
    """Return the names of all targets that were ever leased below `root` and whose records were not deleted."""
    return files.children(root.child(SHELF))


def newest(root: Root, name: str) -> Record | None:
    """Return the newest record of the target called `name`, live or not; raises `Damaged` if it cannot be read."""
    folder, before = folder_of(root, name), 0
    while (generation := newest_generation(folder)) != before:
        before = generation
        try:
            return Record.model_validate_json(files.read(file_of(folder, generation)))
        except FileNotFoundError:  # a newer lease was taken and this file deleted
            continue
        except ValidationError:
            break
    if generation:
        place = file_of(folder, generation)
        raise Damaged(f"{place} cannot be read; delete it when no run is active below {root}")
    return None


def now() -> datetime.datetime:
    """Return the time by this process's clock, as leases use it."""
    return datetime.datetime.now(datetime.UTC)


def create(folder: URI, record: Record) -> bool:
    """Create the file of `record`; return whether it is now the newest, and if so delete the older ones."""
    try:
        files.put(file_of(folder, record.generation), record.model_dump_json(indent=1).encode(), mode="create")
    except FileExistsError:
        return False
    numbers = _generations(folder)
    if max(numbers, default=0) > record.generation:  # we were slow: our number was taken and deleted
        return False
    with contextlib.suppress(OSError):
        for number in numbers:
            if number < record.generation:
                files.remove(file_of(folder, number))
    return True


def newest_generation(folder: URI) -> int:
    return max(_generations(folder), default=0)


def _generations(folder: URI) -> list[int]:
    return [int(match[1]) for match in map(_NAME.fullmatch, files.children(folder)) if match]


def folder_of(root: Root, name: str) -> URI:
    return root.child(f"{SHELF}/{name}")


def file_of(folder: URI, generation: int) -> URI:
    return folder.child(f"{generation:06d}.json")


def after(seconds: float) -> datetime.datetime:
    return now() + datetime.timedelta(seconds=seconds)
