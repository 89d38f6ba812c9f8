"""Architectures: prices, spaces and routes."""
