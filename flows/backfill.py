"""Backfill, as a script: run the flow on several versions of a source's data, oldest first."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not
if __name__ == "__main__":
    from flows.cli import app

    raise SystemExit(app.main("backfill"))
