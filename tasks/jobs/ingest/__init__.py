"""Job: make a raw dataset, of images of one size, from downloads or from the user's own images or Parquet."""
