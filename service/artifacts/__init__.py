"""Artifacts: metadata and downloads."""
