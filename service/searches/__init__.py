"""Searches: starting one, and asking what it would be."""
