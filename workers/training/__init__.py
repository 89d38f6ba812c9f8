"""Training engine, objectives, checkpoints."""
