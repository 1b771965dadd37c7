"""URIs, immutable datasets and the registry of champions, on a local disk or on S3.

This package does not import Ray, torch or Prefect.
"""
