import numpy as np
from sklearn.datasets import load_digits

from service.datasets.builtin import BUILTINS, images_digest


def test_digits_are_the_images_that_the_record_names() -> None:
    bunch = load_digits()
    images = np.rint(bunch.images * 255 / 16).astype(np.uint8)
    labels = bunch.target.astype("<i4")
    digits = BUILTINS["digits"]
    assert images_digest(images.shape, images.tobytes(), labels.tobytes()) == digits.digest
    assert (len(images), min(images.shape[1:])) == (digits.images, digits.min_side)
    assert tuple(map(str, bunch.target_names)) == digits.classes


def test_digest_depends_on_shape_images_and_labels() -> None:
    digest = images_digest((1, 2, 3), bytes(6), bytes(4))
    assert digest != images_digest((1, 3, 2), bytes(6), bytes(4))
    assert digest != images_digest((1, 2, 3), bytes(5) + b"\1", bytes(4))
    assert digest != images_digest((1, 2, 3), bytes(6), bytes(3) + b"\1")
