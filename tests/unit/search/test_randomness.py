import json

import numpy as np
import pytest

from search.randomness import dump_generator, load_generator, randbelow


def test_a_generator_continues_after_a_round_trip_through_json() -> None:
    rng = np.random.default_rng(5)
    rng.integers(7, dtype=np.uint32)  # leaves half a word buffered, which is part of the state
    copy = load_generator(json.loads(json.dumps(dump_generator(rng))))
    assert copy.integers(7, size=20, dtype=np.uint32).tolist() == rng.integers(7, size=20, dtype=np.uint32).tolist()
    assert copy.random(5).tolist() == rng.random(5).tolist()


def test_other_bit_generators_are_refused() -> None:
    with pytest.raises(ValueError, match="found MT19937, allowed is PCG64"):
        dump_generator(np.random.Generator(np.random.MT19937(0)))


@pytest.mark.parametrize("change", [{"state": "x"}, {"inc": None}, {"bit_generator": "MT19937"}])
def test_a_broken_state_is_refused(change: dict[str, object]) -> None:
    state = dump_generator(np.random.default_rng(0))
    with pytest.raises(ValueError, match="generator state"):
        load_generator({**state, **change})


def test_randbelow_is_uniform_and_reaches_both_ends() -> None:
    rng = np.random.default_rng(0)
    draws = np.bincount([randbelow(rng, 5) for _ in range(5000)], minlength=5)
    assert len(draws) == 5
    assert (abs(draws - 1000) < 150).all()


def test_randbelow_covers_bounds_beyond_64_bits() -> None:
    rng = np.random.default_rng(0)
    draws = [randbelow(rng, 3 * 2**100) for _ in range(200)]
    assert max(draws) > 2**101
    assert min(draws) < 2**100
    assert all(0 <= draw < 3 * 2**100 for draw in draws)


def test_randbelow_of_one_is_zero() -> None:
    assert randbelow(np.random.default_rng(0), 1) == 0
