"""Built-in datasets: real data that comes with a dependency, addressed by name, with no row in the database."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from service.datasets.info import DatasetInfo

_DIGEST_DOMAIN = b"vitailor-images-v1"


def images_digest(shape: Sequence[int], images: bytes, labels: bytes) -> str:
    """SHA-256 (hex) of decoded images and their labels.

    Args:
        shape: of the image array, ``(N, H, W)`` or ``(N, H, W, C)``; hashed as ``"NxHxW"``.
        images: the array's bytes, uint8 in C order.
        labels: ``N`` int32 values, little-endian.
    """
    digest = hashlib.sha256(_DIGEST_DOMAIN)
    digest.update("x".join(map(str, shape)).encode("ascii"))
    digest.update(images)
    digest.update(labels)
    return digest.hexdigest()


BUILTINS: Mapping[str, DatasetInfo] = MappingProxyType(
    {
        # Optical recognition of handwritten digits (Alpaydin and Kaynak, 1998), the test part as scikit-learn ships
        # it, in its order. Pixel values 0..16 are scaled to 0..255 by round(value * 255 / 16). Workers verify the
        # digest when they load it, so that another version of the data could not slip in unnoticed.
        "digits": DatasetInfo(
            name="digits",
            id=None,
            digest="b269f64319a2c684c95f1bbe4c003e15fb6d963796ccebfa169cd2e0024bbb17",
            labelled=True,
            classes=tuple("0123456789"),
            images=1797,
            channels=1,
            min_side=8,
        )
    }
)
