"""Plain PyTorch: recipes, sources, models, the training loop and metrics, without Prefect or a cluster."""
