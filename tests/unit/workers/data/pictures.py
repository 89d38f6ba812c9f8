"""Small image files in memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def noise(width: int = 6, height: int = 4, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A random image of a mode."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    """The bytes of its file."""
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def png(seed: int = 0, mode: str = "RGB") -> bytes:
    """A small PNG file."""
    return encoded(noise(seed=seed, mode=mode))


def save(path: Path, seed: int = 0, mode: str = "RGB") -> None:
    """Write a small image, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(seed, mode))
