"""Fitting a latency table to measured networks.

How close its sums come is told by networks that took no part; see :mod:`search.latency`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from models.architecture import Architecture, FieldProblem, is_int
from search.latency import MAX_NS, HeldOut, LatencyError, LatencySetting, LatencyTable

Measured = tuple[Architecture, int]
"""A network and what it took, in nanoseconds."""


def fit_table(
    setting: LatencySetting,
    measured: Sequence[Measured],
    *,
    held_out: Sequence[Measured] = (),
    joint: bool = False,
) -> LatencyTable:
    """The table that explains measured networks best: non-negative least squares of the relative errors.

    Each width is fitted by itself.  By default a block is the sum of an attention part, by head count, and an MLP
    part, by ratio, which needs few networks; ``joint`` gives every pair a time of its own, which needs more of them,
    and lets limits be decided exactly only in spaces with few choices (:mod:`search.profiles`).

    Args:
        setting: of all measurements.
        measured: networks and what they took, in nanoseconds. Of each width they should differ in depth, else the
            fixed part cannot be told from the blocks.
        held_out: other networks, to tell how far predictions are off.
        joint: whether head count and ratio of a block have one time together.

    Raises:
        LatencyError: no networks, times that are none, or a held-out network with a part that no fitted one has.
    """
    if not measured:
        raise LatencyError([FieldProblem("/measured", "no networks", "at least one")])
    for name, networks in (("measured", measured), ("held_out", held_out)):
        for i, (_, ns) in enumerate(networks):
            if not is_int(ns) or not 1 <= ns <= MAX_NS:
                raise LatencyError([FieldProblem(f"/{name}/{i}", ns, f"1 to {MAX_NS} nanoseconds")])
    fixed_ns: dict[int, int] = {}
    block_ns: dict[tuple[int, int, float], int] = {}
    for width in sorted({arch.embed_dim for arch, _ in measured}):
        of_width = [(arch, ns) for arch, ns in measured if arch.embed_dim == width]
        fixed_ns[width], blocks = _fit_joint(of_width) if joint else _fit_separable(of_width)
        block_ns |= {(width, heads, ratio): ns for (heads, ratio), ns in blocks.items()}
    table = LatencyTable(setting, fixed_ns, block_ns)
    for name, networks in (("measured", measured), ("held_out", held_out)):
        for i, (arch, _) in enumerate(networks):
            if problems := table.explain(arch):
                raise LatencyError(FieldProblem(f"/{name}/{i}{p.pointer}", p.found, p.allowed) for p in problems)
    checked = tuple(HeldOut(arch.genotype, table.predict_ns(arch), ns) for arch, ns in held_out)
    for i, network in enumerate(checked):
        if network.predicted_ns > MAX_NS:
            allowed = f"predictions of at most {MAX_NS} nanoseconds"
            raise LatencyError([FieldProblem(f"/held_out/{i}", network.predicted_ns, allowed)])
    return LatencyTable(setting, fixed_ns, block_ns, checked)


_Blocks = dict[tuple[int, float], int]


def _fit_joint(networks: Sequence[Measured]) -> tuple[int, _Blocks]:
    def pairs(arch: Architecture) -> list[tuple[int, float]]:
        return list(zip(arch.num_heads, arch.mlp_ratio, strict=True))

    kinds = sorted({pair for arch, _ in networks for pair in pairs(arch)})
    fixed, *times = _least_squares(networks, lambda arch: [pairs(arch).count(kind) for kind in kinds])
    return fixed, dict(zip(kinds, times, strict=True))


def _fit_separable(networks: Sequence[Measured]) -> tuple[int, _Blocks]:
    heads = sorted({h for arch, _ in networks for h in arch.num_heads})
    ratios = sorted({r for arch, _ in networks for r in arch.mlp_ratio})
    fixed, *times = _least_squares(
        networks,
        lambda arch: [*(arch.num_heads.count(h) for h in heads), *(arch.mlp_ratio.count(r) for r in ratios)],
    )
    of_heads = dict(zip(heads, times, strict=False))
    of_ratio = dict(zip(ratios, times[len(heads) :], strict=True))
    return fixed, {(h, r): of_heads[h] + of_ratio[r] for h, r in product(heads, ratios)}


def _least_squares(networks: Sequence[Measured], counts: Callable[[Architecture], Sequence[int]]) -> list[int]:
    """Times of the call and of each counted part; relative errors count, so that small networks are met as well."""
    times = np.array([ns for _, ns in networks], dtype=float)
    parts = np.array([[1, *counts(arch)] for arch, _ in networks], dtype=float) / times[:, None]
    scale = np.linalg.norm(parts, axis=0)
    # Here, not above: the API reads tables but fits none, and the library takes a second to load.
    from scipy.optimize import nnls

    try:
        solution, _ = nnls(parts / scale, np.ones(len(times)))
    except RuntimeError as error:  # it does not converge: times over so many magnitudes that nothing explains them
        raise LatencyError([FieldProblem("/measured", str(error), "times that a sum over parts explains")]) from error
    return [round(float(ns)) for ns in solution / scale]
