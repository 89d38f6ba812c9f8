"""What a job does, stage by stage."""
