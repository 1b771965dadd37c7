"""Job: make a prepared dataset of a raw one."""
