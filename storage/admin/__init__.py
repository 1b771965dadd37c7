"""Commands that inspect, verify and clean up a storage root."""
