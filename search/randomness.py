"""Random generators as part of a checkpoint, and exact draws from large ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_BIT_GENERATOR = "PCG64"


def dump_generator(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a PCG64 generator as a JSON object; its 128-bit integers are decimal texts.

    Raises:
        ValueError: for another bit generator than PCG64 (the one of ``numpy.random.default_rng``).
    """
    state = rng.bit_generator.state
    if state["bit_generator"] != _BIT_GENERATOR:
        raise ValueError(f"generator state: found {state['bit_generator']}, allowed is {_BIT_GENERATOR}")
    words = {key: str(value) for key, value in state["state"].items()}
    return {"bit_generator": _BIT_GENERATOR, **words, "has_uint32": state["has_uint32"], "uinteger": state["uinteger"]}


def load_generator(document: Mapping[str, Any]) -> np.random.Generator:
    """A generator that continues where :func:`dump_generator` was called.

    Raises:
        ValueError: when the object was not written by :func:`dump_generator`.
    """
    bits = np.random.PCG64()
    try:
        bits.state = {
            "bit_generator": document["bit_generator"],
            "state": {"state": int(document["state"]), "inc": int(document["inc"])},
            "has_uint32": document["has_uint32"],
            "uinteger": document["uinteger"],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"generator state: found {dict(document)!r}, allowed is one of {_BIT_GENERATOR}") from error
    return np.random.Generator(bits)


def randbelow(rng: np.random.Generator, bound: int) -> int:
    """Draw uniformly from ``range(bound)``, for bounds beyond 64 bits too (spaces are larger than that)."""
    n_bits = (bound - 1).bit_length()
    n_bytes = (n_bits + 7) // 8
    while True:  # each turn succeeds with probability above one half
        draw = int.from_bytes(rng.bytes(n_bytes), "little") >> (8 * n_bytes - n_bits)
        if draw < bound:
            return draw
