"""Stages and jobs of slimmable networks: one Vision Transformer that is delivered at any of its widths."""
