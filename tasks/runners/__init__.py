"""Run a stage as a Ray job, on a local Ray or on the cluster that RAY_ADDRESS names, or in the flow's process."""
