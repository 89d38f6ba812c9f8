"""Measured latency: of networks that are built here, and of files that leave the service."""
