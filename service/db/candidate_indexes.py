"""The indexes that lists of candidates are read from.

Each order of the API has an index that starts with the job and ends with n, all ascending: a page is then one row
comparison, (key, n) > (last key, last n), that begins in the index where the page before ended.
"""

from __future__ import annotations

from sqlalchemy import Index, text

INDEXED_COSTS = ("params_m", "gmacs", "weight_mb", "peak_mem_mb", "latency_ms")
"""Costs that candidates are sorted and filtered by; which of them a candidate has depends on its search."""


def candidate_indexes() -> tuple[Index, ...]:
    """New objects, to be declared with the table."""
    return (
        Index("ix_candidate_score", "job_id", text("(- score)"), "n", postgresql_where=text("score IS NOT NULL")),
        *(
            Index(
                f"ix_candidate_{name}",
                "job_id",
                text(f"((costs ->> '{name}')::double precision)"),
                "n",
                postgresql_where=text(f"(costs ->> '{name}')::double precision IS NOT NULL"),
            )
            for name in INDEXED_COSTS
        ),
        Index("ix_candidate_infeasible", "job_id", "n", postgresql_where=text("NOT feasible")),
        Index("ix_candidate_rank", "job_id", "rank", postgresql_where=text("rank IS NOT NULL")),
    )
