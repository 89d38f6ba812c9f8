"""Versions that decide, together with spec and seed, what a trainer computes."""

from __future__ import annotations

import importlib.metadata
import platform

_PACKAGES = ("vitailor", "torch", "timm", "numpy")


def recorded_versions() -> dict[str, str]:
    """Versions of Python, the machine's architecture and the libraries, by name."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "machine": platform.machine(), **packages}
