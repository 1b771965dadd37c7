"""Files that a system puts beside the user's own: thumbnails, recycle bins, logs; they are never data."""

import re

_SYSTEMS = {
    "Synology": ("@eadir", "@tmp", "@sharesnap", "@quarantine", "#recycle", "#snapshot"),
    "QNAP": ("@recycle", "@recently-snapshot", "@transcode"),  # and .@__thumb, hidden as all names with a dot
    "NetApp": ("~snapshot",),
    "Windows": (
        *("$recycle.bin", "recycler", "recycled", "system volume information", "found.000"),
        *("thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini"),
    ),
    "macOS": ("__macosx", "icon\r", "network trash folder", "temporary items"),
    "Linux": ("lost+found",),
    "Android": ("lost.dir",),
    "Spark": (
        *("_success", "_temporary", "_metadata", "_common_metadata", "_spark_metadata", "_change_data"),
        "_symlink_format_manifest",
    ),
    "Delta Lake": ("_delta_log",),
    "Python": ("__pycache__",),
}
"""Names of files and folders by system, in lower case."""
_SYSTEM_OF = {name: system for system, names in _SYSTEMS.items() for name in names}
_MARKER = re.compile(r"_started_|_committed_|.*_\$folder\$$")
"""Names of markers that Spark and Hadoop leave."""


def reason(path: str) -> str:
    """Return why `path` is left out whatever it holds, and even if it cannot be read; empty if it may be data."""
    if "/." in f"/{path}":
        return "hidden: the name begins with a dot"
    for name in path.lower().split("/"):
        if system := _SYSTEM_OF.get(name) or ("Spark" if _MARKER.match(name) else None):
            return f"system files of {system}"
    return ""
