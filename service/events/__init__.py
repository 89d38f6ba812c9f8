"""Live news of jobs: notifications from the database, event streams to clients."""
