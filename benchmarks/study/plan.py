"""A study: jobs of the service on the same images, some of which take over what others have left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.client import Client, Job

Json = dict[str, Any]
Made = Mapping[str, str]
"""Ids that earlier entries have left, such as ``supernet/full-0`` or ``teacher/full-0``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A job of a study.

    Attributes:
        name: unique in the study.
        arm: what is compared; entries of one arm differ by the seed.
        seed: of the job.
        body: of ``POST /search``, from the dataset's id and the ids that earlier entries have left.
        needs: name of the entry whose teacher or supernet it takes over.
        keeps_candidates: whether every candidate is of interest, not only those that were chosen.
    """

    name: str
    arm: str
    seed: int
    body: Callable[[str, Made], Json]
    needs: str | None = None
    keeps_candidates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is run, and what is kept of it.

    Attributes:
        name: of the scale; the dataset is named after it.
        splits: CIFAR-10 images to train on, to rank on, and never looked at; the first two from its training part, in
            its order.
        entries: each after the one that it needs.
        found: what is kept of a job that has succeeded.
    """

    name: str
    splits: tuple[int, int, int]
    entries: Sequence[Entry]
    found: Callable[[Client, Entry, Job], Json]
