"""Truncated JPEGs that Pillow reads without an error: padded with zeros, or with an end marker after half of the image.

The decoder takes zeros for pixels, and paints what is missing before an end marker in plain gray.
"""

import io
import random
import re

from PIL import Image

_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
"""Marker of a segment or of the end; neither a stuffed byte nor a restart marker, which stand among the pixels."""
_END = b"\xd9"
_PAINTED = {127, 128}
"""Values that the decoder gives to missing pixels in each channel; 127 where channels are inverted."""
_MORE_PIXELS = random.Random(0).randbytes(256).replace(b"\xff", b"\x7f")


def find(content: bytes) -> int | None:
    """Return the position of the end marker, with fill bytes before it; None if there is none.

    Previews and what follows the end are skipped.
    """
    place = 0
    while marker := _MARKER.search(content, place):
        if marker[1] == _END:
            return len(content[: marker.start()].rstrip(b"\xff"))
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
    return None


def comes_early(content: bytes, end: int, image: Image.Image, *, draft: tuple[str, tuple[int, int]]) -> bool:
    """Return whether the end marker comes before the last pixels of `image`, which was decoded from `content`.

    More data before the end changes an image only if it is incomplete. This is tried only if the last pixel is gray.

    Args:
        content: The file.
        end: Position of its end marker.
        image: The decoded image.
        draft: Arguments of `Image.draft` with which it was decoded.
    """
    width, height = image.size
    if not set(image.crop((width - 1, height - 1, width, height)).tobytes()) <= _PAINTED:
        return False
    with Image.open(io.BytesIO(content[:end] + _MORE_PIXELS + content[end:]), formats=("JPEG",)) as longer:
        longer.draft(*draft)
        return longer.tobytes() != image.tobytes()
