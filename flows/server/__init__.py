"""Prefect servers: deployments, automations, flow runs, and the temporary server of a single run."""
