"""Content-addressed artifact storage."""
