"""Planning: check a request and compute every URI of the run before any work starts."""
