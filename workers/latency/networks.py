"""Measures many networks with arbitrary weights: what they take depends on their sizes alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from models.architecture import Architecture
from models.extract import build_timm
from search.cost import params
from workers.latency.execution import Execution
from workers.latency.measure import Latency, Pass, Timing, measure
from workers.training.streams import numpy_stream, torch_stream

_GROUP_PARAMS = 200_000_000
"""Parameters of networks that are in memory at once; 0.8 GB in float32."""

_ANCHOR = 0

_GROUP_NETWORKS = 16
"""Most networks of a group; what was measured is reported, and can be saved, after each."""


def measure_networks(
    networks: Sequence[Architecture],
    execution: Execution,
    timing: Timing,
    seed: int,
    scratch: Path,
    *,
    known: Collection[int] = (),
    poll: Callable[[], None] = lambda: None,
) -> Iterator[dict[int, Latency]]:
    """Measure networks in groups, those of a group in turns.

    Which networks form a group is drawn, so that a machine that changes in the course of time does not favour the
    networks at one end of the list. The first of the list is the anchor, which is measured beside every group as well
    (see ``measure.levelled``).

    Args:
        networks: what to measure.
        execution: how they are computed.
        timing: how they are timed.
        seed: of weights, images, and all orders.
        scratch: an existing folder for files that are needed meanwhile.
        known: places of networks that need not be measured again.
        poll: called between passes; may raise to stop.

    Yields:
        What the networks of a group took, by their places in ``networks``.
    """
    for members in groups(networks, seed):
        missing = [i for i in members if i not in known]
        if not missing:
            continue
        with execution.settled():
            passes = [_pass(networks[i], i, execution, seed, scratch, poll) for i in (_ANCHOR, *missing)]
            rng = numpy_stream(seed, "latency", "rounds", members[0])
            anchor, *taken = measure(passes, timing, rng, poll=poll)
            yield {i: replace(latency, anchor_ns=anchor.ns) for i, latency in zip(missing, taken, strict=True)}


def groups(networks: Sequence[Architecture], seed: int) -> list[list[int]]:
    """Places of the networks that are measured together: a function of the networks and the seed."""
    order = numpy_stream(seed, "latency", "groups").permutation(len(networks))
    found: list[list[int]] = []
    room = 0
    for i in map(int, order):
        size = params(networks[i])
        if not found or len(found[-1]) == _GROUP_NETWORKS or size > room:
            found.append([])
            room = _GROUP_PARAMS
        found[-1].append(i)
        room -= size
    return found


def _pass(arch: Architecture, i: int, execution: Execution, seed: int, scratch: Path, poll: Callable[[], None]) -> Pass:
    poll()
    network = build_timm(arch, torch_stream(seed, "latency", "weights", i)).eval()
    images = execution.images(arch, torch_stream(seed, "latency", "images", i))
    return execution.pass_of(network, images, scratch)
