"""The stages, one Prefect task per file; the code that they call is in `jobs` and `learning`."""
