"""Supernets that searches have trained."""
