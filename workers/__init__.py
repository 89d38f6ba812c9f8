"""Job execution: Celery app, claims, supervisor, trainer child, stages, training."""
