"""Device agents: machines elsewhere that measure latencies, and may do nothing else."""
