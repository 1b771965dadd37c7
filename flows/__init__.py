"""What runs, in order: the flows and their command lines."""
