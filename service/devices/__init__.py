"""Devices: latency targets with the tables that predict what networks take on them."""
