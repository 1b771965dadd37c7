"""URIs, immutable datasets and the registry of champions, on disk or S3; no Ray, torch or Prefect."""
