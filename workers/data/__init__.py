"""Datasets on the worker: formats, splits, memory-mapped cache."""
