"""URIs, immutable datasets and the registry of champions, on a local disk or S3 alike.

Knows nothing of Ray, torch or Prefect.
"""
