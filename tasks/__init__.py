"""One file per stage, each a Prefect task; what they call lies in `jobs` and `learning`."""
