"""Datasets: registry and routes."""
