"""Job: from downloaded files, or a person's own images or Parquet, to a raw dataset of images of one size.

Whatever the source is, it becomes pieces of work (`pieces.Source`), the pieces become parts, and `job` commits them.
"""
