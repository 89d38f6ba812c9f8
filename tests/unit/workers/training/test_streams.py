from __future__ import annotations

import numpy as np
import pytest
import torch

from workers.training.streams import numpy_stream, stream_key, torch_stream


def test_stream_is_a_function_of_seed_and_path() -> None:
    first = torch.rand(8, generator=torch_stream(7, "supernet", "mask", 3))
    second = torch.rand(8, generator=torch_stream(7, "supernet", "mask", 3))
    assert torch.equal(first, second)
    assert np.array_equal(numpy_stream(7, "a").random(8), numpy_stream(7, "a").random(8))


def test_keys_are_pinned_so_that_old_checkpoints_stay_resumable() -> None:
    # Computed once; a change of the encoding changes every later draw of runs that are under way.
    assert stream_key(0, "supernet", "mask", 17) == 0x8475570B1E25EAF18218AA6F34477C06


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "a", 1), (0, "a", "1")),
        ((0, "a", "b"), (0, "ab")),
        ((0, "a,b"), (0, "a", "b")),
        ((0, "a"), (1, "a")),
        ((1, 2), (12,)),
        ((0, "epoch", 1), (0, "epoch", 2)),
    ],
)
def test_different_paths_give_different_streams(one: tuple[int | str, ...], other: tuple[int | str, ...]) -> None:
    assert stream_key(*one) != stream_key(*other)  # type: ignore[arg-type]


def test_neighbouring_steps_are_uncorrelated() -> None:
    draws = torch.stack([torch.rand(4000, generator=torch_stream(0, "s", step)) for step in range(6)])
    correlation = torch.corrcoef(draws) - torch.eye(6)
    assert correlation.abs().max() < 0.08  # five standard deviations of the correlation of 4000 pairs


@pytest.mark.parametrize("part", [True, 1.5, None])
def test_other_types_are_refused(part: object) -> None:
    with pytest.raises(TypeError, match="texts and integers"):
        stream_key(0, "a", part)  # type: ignore[arg-type]
