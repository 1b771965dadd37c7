"""Resources: what a stage needs, what this machine and the cluster have, locks, and devices."""
