"""Workers: who is there to run jobs."""
