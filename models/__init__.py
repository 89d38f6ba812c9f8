"""Neural networks: architecture record, supernet, slicing, extraction, export."""
