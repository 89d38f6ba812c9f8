from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.unit.workers.data.pictures import encoded, noise, png
from workers.data.images import MAX_PIXELS, ImageError, decode, to_square


def squared(data: bytes, size: int = 4, channels: int = 3) -> np.ndarray:
    return to_square(decode(data), size, channels)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an image"),
        (b"hello, I am a text", "not an image"),
        (encoded(noise(64, 64), "JPEG")[:-200], "truncated"),
        (png()[:60], "cannot be decoded"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image"),
    ],
    ids=["empty", "text", "cut jpeg", "cut png", "postscript"],
)
def test_broken_files_are_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        decode(data)


def test_png_with_a_bad_checksum_is_refused() -> None:
    data = bytearray(png())
    data[data.index(b"IDAT") + 6] ^= 0xFF
    with pytest.raises(ImageError, match="cannot be decoded"):
        decode(bytes(data))


def test_jpeg_with_trailing_rubbish_is_fine() -> None:
    clean = encoded(noise(16, 16), "JPEG")
    assert np.array_equal(squared(clean), squared(clean + b"rubbish" * 100))


def test_bomb_is_refused_before_it_is_decoded() -> None:
    side = int(MAX_PIXELS**0.5) + 1
    bomb = encoded(Image.new("1", (side, side)))
    assert len(bomb) < 100_000
    with pytest.raises(ImageError, match=f"{side} x {side} pixels"):
        decode(bomb)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_mutated_files_never_raise_anything_else(file_format: str) -> None:
    original = encoded(noise(9, 7), file_format)
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(60):
        data = bytearray(original)
        for _ in range(rng.integers(1, 12)):
            data[rng.integers(len(data))] = rng.integers(256)
        try:
            outcomes.add(to_square(decode(bytes(data)), 4, 3).shape)
        except ImageError:
            outcomes.add(None)
    assert None in outcomes
    assert outcomes <= {None, (3, 4, 4)}


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_grey_and_colour(mode: str) -> None:
    decoded = decode(encoded(noise(mode=mode), "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"))
    assert to_square(decoded, 4, 1).shape == (1, 4, 4)
    assert to_square(decoded, 4, 3).shape == (3, 4, 4)
    assert decoded.is_grey == (mode in ("1", "L", "LA"))


def test_sixteen_bit_grey_is_scaled_and_not_clipped() -> None:
    levels = np.array([[0, 257, 32_896, 65_535]] * 4, dtype=np.uint16)
    grey = squared(encoded(Image.fromarray(levels)), channels=1)
    assert grey[0, 0].tolist() == [0, 1, 128, 255]


def test_modes_without_a_range_are_refused() -> None:
    floats = encoded(Image.fromarray(np.zeros((4, 4), dtype=np.float32)), "TIFF")
    with pytest.raises(ImageError, match="no agreed range"):
        decode(floats)


def test_exif_orientation_is_applied() -> None:
    image = Image.new("RGB", (8, 4))
    image.paste((255, 255, 255), (0, 0, 4, 4))  # left half white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    turned = decode(encoded(image, "PNG", exif=exif)).image
    assert turned.size == (4, 8)
    assert turned.getpixel((0, 0)) == (255, 255, 255)
    assert turned.getpixel((0, 7)) == (0, 0, 0)


def test_central_square_is_cut_out() -> None:
    image = Image.new("L", (12, 4))
    image.paste(255, (4, 0, 8, 4))
    assert (squared(encoded(image), channels=1) == 255).all()


def test_square_of_the_right_size_is_left_untouched() -> None:
    image = noise(5, 5)
    assert np.array_equal(squared(encoded(image), size=5), np.asarray(image).transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_laid_on_white(mode: str) -> None:
    image = Image.new(mode, (4, 4), {"RGBA": (0, 0, 0, 0), "LA": (0, 0), "P": 0}[mode])
    options = {"transparency": 0} if mode == "P" else {}
    assert (squared(encoded(image, "PNG", **options)) == 255).all()


def test_half_transparent_pixels_are_mixed_with_white() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 51))
    assert squared(encoded(image))[:, 0, 0].tolist() == [255, 204, 204]


def test_opaque_palette_is_expanded() -> None:
    image = noise(5, 5, mode="P")
    assert np.array_equal(squared(encoded(image), size=5), np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def test_sixteen_bit_pgm_is_scaled_too() -> None:
    levels = np.array([[0, 257, 32_896, 65_535]] * 4, dtype=">u2")
    data = b"P5 4 4 65535\n" + levels.tobytes()
    assert squared(data, channels=1)[0, 0].tolist() == [0, 1, 128, 255]
