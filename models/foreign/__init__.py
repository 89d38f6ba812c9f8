"""Weights that others have published: recognised by names and shapes alone, and named as timm does.

Pure Python, since the HTTP service looks at a file before it makes a job of it; ``models.teacher_weights`` does the
arithmetic.
"""
