"""Resources: what a stage needs, what this machine and the cluster have, taking turns, and devices."""
