"""Plain PyTorch: recipes, data sets, models, the training loop and metrics, without Prefect or a cluster."""
