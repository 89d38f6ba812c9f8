"""Candidates: the scored architectures of a search, and its Pareto front."""
