"""From the bytes of one image file to pixels, by one policy that an export can repeat.

The policy, in order: the first frame; turned upright by its EXIF orientation; 16-bit grey scaled to 8 bits; what is
transparent laid on white; converted to grey (ITU-R 601 luma) or RGB with Pillow's conversions (palettes expanded, CMYK
inverted); the central square cut out and resized with an antialiased bicubic filter.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 64_000_000
"""Larger images are refused before they are decoded: a file of a few kilobytes can declare gigabytes of pixels."""

# Only decoders of raster formats. Pillow would otherwise also try ones that start other programs, such as EPS.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

BACKGROUND = (255, 255, 255)
"""Colour that transparent pixels are laid on. Dropping alpha would show whatever a painter left below it."""

_GREY_16 = ("I;16", "I;16B", "I;16L", "I;16N")
_GREY = ("1", "L", "LA", *_GREY_16)
_CONVERTIBLE = (*_GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")

CONVERSIONS = {
    "1": "black becomes 0, white 255",
    "LA": "laid on white",
    **dict.fromkeys(_GREY_16, "16 bits scaled to 8: value / 257, rounded"),
    "P": "palette expanded; transparent entries laid on white",
    "PA": "palette expanded, laid on white",
    "RGBA": "laid on white",
    "RGBX": "fourth channel dropped",
    "CMYK": "to RGB without a colour profile",
    "YCbCr": "to RGB (JPEG conversion)",
    "LAB": "to RGB",
    "HSV": "to RGB",
}
"""What is done to pixels of each mode but L and RGB, before images become grey or colour as a job asks; for reports."""

# What Pillow's decoders may raise on broken files, of which only the first is documented. The list is generous, since
# a dataset's import must not end at one bad file.
_DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    OverflowError,
    IndexError,
    KeyError,
    TypeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


class ImageError(ValueError):
    """The bytes are no image that this service reads; the message is the reason, for the dataset's report."""


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """A completely decoded image, upright, in its own mode.

    Attributes:
        image: pixels.
        format: file format by Pillow's name, such as ``JPEG``.
        mode: Pillow's mode as stored in the file, such as ``CMYK``.
        animated: True when the file holds more frames, which are not used.
    """

    image: Image.Image
    format: str
    mode: str
    animated: bool = False

    @property
    def is_grey(self) -> bool:
        """True when the mode has no colour."""
        return self.mode in _GREY


def decode(data: bytes) -> DecodedImage:
    """Decode a file completely, so that truncation is found here and not in the middle of a training.

    Raises:
        ImageError: not one of the known formats, broken, without pixels, too large, or of a mode without an agreed
            range (32-bit integers and floats).
    """
    try:
        with warnings.catch_warnings():
            # Pillow's own bomb check warns on standard error; the limit here is lower and has a name.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=_FORMATS) as opened:
                width, height = opened.size
                if width * height > MAX_PIXELS:
                    raise ImageError(f"{width} x {height} pixels, more than {MAX_PIXELS}")
                animated = bool(getattr(opened, "is_animated", False))
                opened.seek(0)
                opened.load()
                file_format, mode = opened.format or "unknown", opened.mode
                upright = ImageOps.exif_transpose(opened)
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"not an image in one of the formats {', '.join(_FORMATS)}") from None
    except _DECODER_ERRORS as error:
        raise ImageError(f"cannot be decoded: {error or type(error).__name__}") from error
    if file_format == "PPM" and mode == "I":
        # Pillow's name for grey of up to 16 bits in this format, which it has scaled to all 16 already.
        return DecodedImage(Image.fromarray(np.asarray(upright).astype(np.uint16)), file_format, "I;16", animated)
    if mode not in _CONVERTIBLE:
        raise ImageError(f"pixel mode {mode} has no agreed range; save it with 8 or 16 bits")
    return DecodedImage(upright, file_format, mode, animated)


def to_square(decoded: DecodedImage, size: int, channels: int) -> NDArray[np.uint8]:
    """Apply the rest of the policy.

    Args:
        decoded: from :func:`decode`.
        size: side of the result in pixels; smaller images are enlarged.
        channels: 1 (grey) or 3 (RGB).

    Returns:
        uint8 (channels, size, size).
    """
    image = _eight_bits(decoded)
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, BACKGROUND)
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque
    image = image.convert("L" if channels == 1 else "RGB")
    fitted = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC, centering=(0.5, 0.5))
    pixels = np.asarray(fitted, dtype=np.uint8)
    return pixels[np.newaxis] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _eight_bits(decoded: DecodedImage) -> Image.Image:
    if decoded.mode not in _GREY_16:
        return decoded.image
    # Pillow's own conversion clips everything above 255 to white.
    wide = np.asarray(decoded.image).astype(np.float64)
    return Image.fromarray(np.rint(wide / 257).astype(np.uint8))
