"""What trainers and supervisors say to each other about shards of a population; part of ``workers.protocol``.

A trainer asks and its supervisor answers, with the same ``ask``. The search itself opens a group of shards and takes
some of them; helpers take others and hand in what they found (``docs/decisions``, 0031).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_MEMBERS = 200
"""Candidates of one shard."""

MOST_SHARDS = 10
"""Orders or results in one message, so that a line stays about a megabyte."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class ShardOrder(_Message):
    """What is to be measured. ``n`` counts the shards of an attempt."""

    n: int
    genotypes: list[list[int | float]] = Field(min_length=1, max_length=MOST_MEMBERS)
    measures: list[list[str]]  # of each candidate
    batches: tuple[int, int] | None  # range of them, the end excluded; None: all


class ShardResult(_Message):
    """What was found, of each candidate in the order of the genotypes: one of the two."""

    n: int
    measures: list[dict[str, float | None]] | None = None  # of a shard that holds all batches
    sums: list[list[list[float | None]]] | None = None  # of each batch, of each measure; None is no finite number


class SeekHelpers(_Message):
    """Let so many workers help this search until its attempt ends."""

    type: Literal["helpers_seek"] = "helpers_seek"
    count: int
    machine: dict[str, Any]  # helpers measure only where this is the same
    files: list[str]  # of the checkpoint, that a scorer is made from


class OpenShards(_Message):
    """Offer shards. Those with a smaller ``n`` than ``first`` are over."""

    type: Literal["shards_open"] = "shards_open"
    first: int
    shards: list[ShardOrder] = Field(max_length=MOST_SHARDS)


class TakeShard(_Message):
    """The search asks for a free shard, and for results."""

    type: Literal["shard_take"] = "shard_take"
    ask: int = 0  # filled by the channel
    hand: int  # of the trainer: its processes each have one
    have: list[int]  # shards that need no result any more
    patience_s: float  # a shard that somebody has held for longer is given out twice


class ShardNews(_Message):
    """The answer. Results that do not fit come with the next one."""

    type: Literal["shard_news"] = "shard_news"
    ask: int
    order: ShardOrder | None
    results: list[ShardResult] = Field(max_length=MOST_SHARDS)


class HelpWithShard(_Message):
    """A helper hands in what it has measured, and asks for a free shard."""

    type: Literal["shard_help"] = "shard_help"
    ask: int = 0
    hand: int
    done: ShardResult | None = None


class ShardGrant(_Message):
    """The answer to a helper. ``over``: the search needs no help any more, or the slot is needed by another job."""

    type: Literal["shard_grant"] = "shard_grant"
    ask: int
    order: ShardOrder | None = None
    over: Literal["search", "slot"] | None = None


ShardQuestion = TakeShard | HelpWithShard
ShardAnswer = ShardNews | ShardGrant
