"""The query parameters that choose among candidates."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query
from pydantic import Field

from service.candidates.repository import CandidateFilter, Range
from service.candidates.schemas import Axis
from service.errors import ErrorItem, ValidationFailed

_Bound = Annotated[
    float | None,
    Field(allow_inf_nan=False),
    Query(description="Inclusive; candidates without this figure are left out."),
]


def _candidate_filter(
    feasible: Annotated[bool | None, Query(description="Only those that do, or do not, meet the limits.")] = None,
    on_front: Annotated[bool | None, Query(description="Only those that are, or are not, on the front.")] = None,
    min_score: _Bound = None,
    max_score: _Bound = None,
    min_params_m: _Bound = None,
    max_params_m: _Bound = None,
    min_gmacs: _Bound = None,
    max_gmacs: _Bound = None,
    min_weight_mb: _Bound = None,
    max_weight_mb: _Bound = None,
    min_peak_mem_mb: _Bound = None,
    max_peak_mem_mb: _Bound = None,
    min_latency_ms: _Bound = None,
    max_latency_ms: _Bound = None,
) -> CandidateFilter:
    ranges = {
        Axis.SCORE: Range(min_score, max_score),
        Axis.PARAMS_M: Range(min_params_m, max_params_m),
        Axis.GMACS: Range(min_gmacs, max_gmacs),
        Axis.WEIGHT_MB: Range(min_weight_mb, max_weight_mb),
        Axis.PEAK_MEM_MB: Range(min_peak_mem_mb, max_peak_mem_mb),
        Axis.LATENCY_MS: Range(min_latency_ms, max_latency_ms),
    }
    crossed = [
        ErrorItem(f"min_{axis}", "empty_range", f"{bounds.low:g} is above max_{axis}", f"at most {bounds.high:g}")
        for axis, bounds in ranges.items()
        if bounds.low is not None and bounds.high is not None and bounds.low > bounds.high
    ]
    if crossed:
        raise ValidationFailed.of(crossed)
    return CandidateFilter(feasible=feasible, on_front=on_front, ranges=ranges)


CandidateFilterDep = Annotated[CandidateFilter, Depends(_candidate_filter)]
"""Which candidates are asked for.

Raises:
    ValidationFailed: a lower bound is above its upper bound.
"""
