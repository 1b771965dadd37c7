"""URIs: locations in storage, and the only values that tasks pass to each other."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Self
from urllib.parse import unquote, urlsplit

from pydantic_core import CoreSchema, core_schema

FINGERPRINT_LENGTH = 12
"""Hexadecimal digits: 48 bits, so a collision is unlikely until one root holds millions of results."""
_LONGEST = 1000
"""Maximum characters of a storage root: S3 allows 1,024 including the path below it, and file systems little more."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_LISTING = re.compile(r"/runs/[^/]+/listing-[0-9a-f]{64}\.parquet$")
_ADDRESS = re.compile(
    r"""
    (?: // (?:[^\s/@:]*:(?!\d+\b)[^\s@]+\s[^@\n]{0,99}@)?  # perhaps a password with a space, but not a host's port
    |   \?[\w.%&;+~-]+=                                     # or a query alone, as some errors name it
    )
    \S*? (?=[])}>"'`,.;:]{0,9}(?:\s|$))                     # up to the quote, bracket or full stop of the text
    """,
    re.VERBOSE,
)
"""An address or a query in a text."""
_MISTYPED = re.compile(r"^((?:[a-z0-9]+:/)?)[^/\s]+:\S*@", re.IGNORECASE)
"""Credentials after one slash or none, as in `s3:/key:secret@bucket`."""


class URI(str):
    """A location in storage: a plain absolute path or `s3://bucket/key`, in one canonical form.

    `file:///...` becomes the plain path with its percent escapes decoded. Raises `ValueError` for other schemes,
    relative paths, `..`, user info, queries and fragments. In a plain path, `?`, `#` and `%` are ordinary characters.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        return super().__new__(cls, _canonical(value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        """Let pydantic parse strings into URIs of the declared type."""
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())

    @property
    def is_s3(self) -> bool:
        return self.startswith("s3://")

    @property
    def name(self) -> str:
        return self.rstrip("/").rpartition("/")[2]

    @property
    def fingerprint(self) -> str:
        """Digest at the end of the name; it identifies everything that decided the bytes."""
        return self.name.rpartition("-")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def label(self) -> str:
        """What stands for this URI in the fingerprints of results made from it: its name, wherever the root is."""
        return self.name

    @property
    def parent(self) -> "URI":
        """Parent folder; a bucket and `/` are their own parents."""
        above = self.rpartition("/")[0]
        return self if above == "s3:/" else str.__new__(URI, above or "/")

    def child(self, path: str) -> "URI":
        """Return the URI of `path` (relative, may have several components) below this one.

        `path` may come from a listing: `?` and `#` are characters of an S3 key, too, though nobody can type them.
        """
        below = f"{self.removeprefix('s3:/').rstrip('/')}/{path}"
        return str.__new__(URI, ("s3:/" if self.is_s3 else "") + _normal(below, shown=f"{self}/{path}"))

    def lies_in(self, folder: "URI") -> bool:
        """Return whether this URI is at or below `folder`, after resolving all links in both."""
        places = [str(uri) if uri.is_s3 else os.path.realpath(uri) for uri in (self, folder)]
        return f"{places[0]}/".startswith(f"{places[1].rstrip('/')}/")


class Root(URI):
    """Storage root; every result lies below it."""


class ListingURI(URI):
    """A list of the user's files: `runs/<data>-<fingerprint>/listing-<SHA-256 of its rows>.parquet`."""

    def __new__(cls, value: str) -> Self:
        if not _LISTING.search(value):
            raise ValueError(
                f"the URI of a listing must end in runs/NAME/listing-<SHA-256>.parquet, got {redact(value)!r}"
            )
        return super().__new__(cls, value)

    @property
    def stem(self) -> str:
        return self.parent.stem

    @property
    def label(self) -> str:
        return self.parent.name

    @property
    def root(self) -> Root:
        """Storage root that it lies below."""
        return Root(self.parent.parent.parent)


def parse_root(value: str, *, option: str = "--storage") -> Root:
    """Convert a storage root that a user typed, also a relative path or `~`; raises `ValueError` naming `option`."""
    if not value:
        raise ValueError(f"{option} must be a folder or s3://bucket/prefix, got an empty value")
    if len(value) > _LONGEST:
        raise ValueError(
            f"{option} must have at most {_LONGEST} characters, got {len(value)}: {redact(value)[:50]!r}..."
        )
    if not re.match("[A-Za-z0-9+.-]*://|s3:|file:", value):
        value = os.path.abspath(os.path.expanduser(value))
    try:
        return Root(value)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def check_name(name: str, *, field: str) -> str:
    """Return `name` if it is valid; raises `ValueError` naming `field` if not."""
    if not is_name(name):
        raise ValueError(f"{field} must be 1 to 64 of a-z, 0-9 and '-', got {name!r}")
    return name


def is_web_address(text: str) -> bool:
    """Return whether `text` is an http(s) address with a host and, if given, a valid port."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def redact(url: str) -> str:
    """Mask the text between a scheme and an `@`, also if a `/` is missing; drop everything after a `?` or `#`."""
    scheme, _, rest = url.partition("//")
    if not rest and not url.startswith(("/", ".")):
        url = _MISTYPED.sub(r"\1***@", url)
    hidden, at, shown = rest.rpartition("@")
    if at:
        is_clear = "?" not in hidden and "#" not in hidden  # else the `@` may be part of the query
        url = f"{scheme}//***@{shown}" if is_clear else f"{scheme}//***"
    return url.partition("?")[0].partition("#")[0]


def redact_text(text: str) -> str:
    """Redact each address in a message or a traceback; everything else stays, such as comments and questions."""
    return _ADDRESS.sub(lambda match: redact(match[0]), text)


def _canonical(value: str) -> str:
    if value.startswith("/"):
        return _normal(value, shown=value)
    scheme, _, path = value.partition("://")
    scheme, shown = scheme.lower(), redact(value)
    if scheme not in ("file", "s3") or "://" not in value:
        raise ValueError(f"must be a path or s3://bucket/prefix, got {shown!r}")
    if "@" in path.partition("/")[0] or (scheme == "s3" and ":" in path.partition("/")[0]):
        raise ValueError(f"a URI must not contain credentials, got {shown!r}; use the AWS_* variables")
    if "?" in path or "#" in path:
        raise ValueError(f"a URI must have no query or fragment, got {shown!r}")
    if scheme == "s3":
        if not _BUCKET.fullmatch(path.partition("/")[0]):
            raise ValueError(f"an s3 URI needs a bucket name of a-z, 0-9, '-' and '.', got {shown!r}")
        return "s3:/" + _normal(f"/{path}", shown=shown)
    if not path.startswith("/"):
        raise ValueError(f"a file URI must be file:///..., without a host, got {shown!r}")
    return _normal(unquote(path), shown=shown)


def _normal(path: str, *, shown: str) -> str:
    components = path.split("/")
    if "\0" in path:
        raise ValueError(f"a URI must not contain a NUL character, got {shown!r}")
    if ".." in components:
        raise ValueError(f"a URI must not contain '..', got {shown!r}")
    return "/" + "/".join(component for component in components if component not in ("", "."))


def fingerprint(stage: str, *, version: int, parents: Mapping[str, str], values: Mapping[str, object]) -> str:
    """Hash a stage, its version, the names of its parents by role, and the `values` (JSON) that decide its result.

    Equal arguments give the same digest on every machine.
    """
    made_from = {"stage": stage, "version": version, "parents": dict(parents), "values": dict(values)}
    canonical = json.dumps(made_from, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:FINGERPRINT_LENGTH]
