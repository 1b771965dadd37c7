"""Plain PyTorch: recipes, data sets, models, the training loop, metrics. No Prefect and no cluster."""
