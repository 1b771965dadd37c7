"""Implementation of `python -m storage`: commands that inspect, verify and clean up a storage root."""
