"""What `python -m storage` is made of: commands that look at a storage root, and look after it."""
