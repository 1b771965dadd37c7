"""Job: train with DDP, on Ray Train or in this process; resumes from the newest complete checkpoint of any attempt."""
