"""Job: make a raw dataset, of images of one size, from downloaded files or from the user's own images or Parquet files.

Each kind of source divides itself into pieces of work (`pieces.Source`); `job` turns them into parts and commits these.
"""
