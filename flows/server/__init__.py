"""Prefect servers: deployments, flow runs, and the temporary server of a single run."""
