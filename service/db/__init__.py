"""Database models, engine and migrations."""
