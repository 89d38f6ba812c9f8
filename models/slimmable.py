"""Slimmable networks: one Vision Transformer that runs at many widths (Scala, Zhang et al. 2024; US-Net, Yu 2019).

Depth, the number of heads and the MLP ratios are fixed; a subnet is chosen by the width of its heads alone, from which
its token width and the hidden widths of its MLPs follow. So a network with heads of 64 channels has one subnet for
every whole number up to 64, whatever widths it was trained at. Pure Python: service and search read it too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

from models.architecture import Architecture, FieldProblem, is_int
from models.slicing import Cut, QkvSlicing

_DENOMINATOR = 4096
"""Ratios are taken as the nearest fraction with at most this denominator, so that 0.3333 steps do not drift."""


class SlimmableError(ValueError):
    """No such slimmable network. ``problems`` names each field, what was found and what is allowed."""

    def __init__(self, *problems: FieldProblem) -> None:
        self.problems = problems
        super().__init__("; ".join(map(str, problems)))


class IsolatedActivation(StrEnum):
    """Which subnets are cut from the trailing entries, so that the smallest overlaps the others from one end only.

    The two readings are mirror images. With head-aligned slicing the entries of each head are meant, not those of the
    concatenated tensor.
    """

    OFF = "off"
    PAPER = "paper"  # the smallest (Scala, section 3.2)
    OFFICIAL = "official"  # all but the smallest and the largest (released code and weights)


class AttentionScale(StrEnum):
    """What the products of queries and keys are scaled by."""

    PER_WIDTH = "per_width"  # the subnet's width of a head, as a network of its own does
    FULL = "full"  # the largest network's, as in Scala's released code


@dataclass(frozen=True, slots=True, kw_only=True)
class Slimmable:
    """A slimmable network and the widths it was trained at.

    Attributes:
        largest: the whole network; tokens as wide as all heads of a block together.
        head_dims: widths of a head that training samples from, ascending, the last one the whole network's. Two at
            least.
        qkv: how queries, keys and values are cut.
        isolated: which subnets are cut from the trailing entries.
        attention_scale: as it was trained with.

    Raises:
        SlimmableError: naming the fields at fault.
    """

    largest: Architecture
    head_dims: tuple[int, ...]
    qkv: QkvSlicing = QkvSlicing.HEAD_ALIGNED
    isolated: IsolatedActivation = IsolatedActivation.OFF
    attention_scale: AttentionScale = AttentionScale.PER_WIDTH

    def __post_init__(self) -> None:
        problems = tuple(_problems(self))
        if problems:
            raise SlimmableError(*problems)

    @property
    def smallest(self) -> int:
        """Width of a head of the smallest trained subnet."""
        return self.head_dims[0]

    @property
    def served(self) -> range:
        """Widths of a head that can be asked for, trained or not."""
        return range(self.smallest, self.largest.head_dim + 1)

    def is_trained(self, head_dim: int) -> bool:
        """Whether training samples this width; others are interpolated."""
        return head_dim in self.head_dims

    def neighbours(self, head_dim: int) -> tuple[int, int]:
        """The trained widths below and above a width; twice itself when it is trained.

        Raises:
            SlimmableError: outside of what is served.
        """
        self._check(head_dim)
        at = bisect_left(self.head_dims, head_dim)
        above = self.head_dims[at]
        return (above if above == head_dim else self.head_dims[at - 1]), above

    def ratio(self, head_dim: int) -> float:
        """Width as a share of the whole network's."""
        return head_dim / self.largest.head_dim

    def embed_dim(self, head_dim: int) -> int:
        """Token width."""
        return head_dim * self.largest.num_heads[0]

    def head_dim_of(self, embed_dim: int) -> int:
        """Width of a head of the subnet with this token width.

        Raises:
            SlimmableError: there is none; ``/embed_dim`` with what there is.
        """
        heads = self.largest.num_heads[0]
        if embed_dim % heads or embed_dim // heads not in self.served:
            allowed = f"a multiple of {heads} from {self.embed_dim(self.smallest)} to {self.largest.embed_dim}"
            raise SlimmableError(FieldProblem("/embed_dim", embed_dim, allowed))
        return embed_dim // heads

    def architecture(self, head_dim: int, num_classes: int | None = None) -> Architecture:
        """The subnet of a width.

        Args:
            head_dim: one of ``served``.
            num_classes: of its head; by default that of the whole network.

        Raises:
            SlimmableError: outside of what is served.
        """
        self._check(head_dim)
        classes = self.largest.num_classes if num_classes is None else num_classes
        return replace(self.largest, head_dim=head_dim, embed_dim=self.embed_dim(head_dim), num_classes=classes)

    def cut(self, head_dim: int) -> Cut:
        """How the subnet of a width is cut; for ``models.slicing.slice_table``.

        Raises:
            SlimmableError: outside of what is served.
        """
        self._check(head_dim)
        match self.isolated:
            case IsolatedActivation.OFF:
                trailing = False
            case IsolatedActivation.PAPER:
                trailing = head_dim == self.smallest
            case IsolatedActivation.OFFICIAL:
                trailing = self.smallest < head_dim < self.largest.head_dim
        return Cut(trailing, self.qkv, self.attention_scale is AttentionScale.FULL)

    def _check(self, head_dim: int) -> None:
        if head_dim not in self.served:
            allowed = f"an integer from {self.smallest} to {self.largest.head_dim}"
            raise SlimmableError(FieldProblem("/head_dim", head_dim, allowed))

    def to_json(self) -> dict[str, Any]:
        """All fields; :meth:`from_json` reads them back."""
        return {
            "largest": self.largest.to_json(),
            "head_dims": list(self.head_dims),
            "qkv": self.qkv.value,
            "isolated": self.isolated.value,
            "attention_scale": self.attention_scale.value,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Slimmable:
        """Read what :meth:`to_json` wrote.

        Raises:
            SlimmableError, ArchitectureError, ValueError, KeyError: not such a document.
        """
        return cls(
            largest=Architecture.from_json(document["largest"]),
            head_dims=tuple(document["head_dims"]),
            qkv=QkvSlicing(document["qkv"]),
            isolated=IsolatedActivation(document["isolated"]),
            attention_scale=AttentionScale(document["attention_scale"]),
        )


def grid(head_dim: int, smallest: float, step: float | None) -> tuple[int, ...]:
    """Widths of a head from ``smallest`` to 1 in steps, ascending (Scala, section 3.1).

    Args:
        head_dim: of the whole network.
        smallest: the least width, as a share of it, 0 to 1.
        step: from one width to the next, as a share; None: every whole number.

    Raises:
        SlimmableError: steps that miss 1, or a width that is no whole number; pointers ``/smallest`` and ``/step``.
    """
    least = _fraction(smallest) * head_dim
    if least.denominator != 1 or not 1 <= least < head_dim:
        allowed = f"k / {head_dim} with k from 1 to {head_dim - 1}, for heads of {head_dim} channels"
        raise SlimmableError(FieldProblem("/smallest", smallest, allowed))
    if step is None:
        return tuple(range(int(least), head_dim + 1))
    stride = _fraction(step) * head_dim
    if stride.denominator != 1 or stride < 1 or (head_dim - least) % stride:
        strides = [f"{Fraction(k, head_dim)}" for k in range(1, head_dim) if not (head_dim - int(least)) % k]
        allowed = f"one of {', '.join(strides)}, which lead from {smallest:g} to 1 in whole channels"
        raise SlimmableError(FieldProblem("/step", step, allowed))
    return tuple(range(int(least), head_dim + 1, int(stride)))


def _fraction(ratio: float) -> Fraction:
    return Fraction(ratio).limit_denominator(_DENOMINATOR)


def _problems(net: Slimmable) -> Iterator[FieldProblem]:
    largest = net.largest
    if len(set(largest.num_heads)) != 1 or largest.embed_dim != largest.num_heads[0] * largest.head_dim:
        found = f"{largest.embed_dim} with heads {list(largest.num_heads)} of {largest.head_dim}"
        yield FieldProblem("/largest/embed_dim", found, "as wide as the heads of every block together")
    dims = net.head_dims
    sound = all(is_int(dim) for dim in dims) and list(dims) == sorted(set(dims))
    if not sound or len(dims) < 2 or dims[0] < 1 or dims[-1] != largest.head_dim:
        allowed = f"two or more widths from 1 to {largest.head_dim}, ascending, the last one {largest.head_dim}"
        yield FieldProblem("/head_dims", list(dims), allowed)
    for name, kind in (("qkv", QkvSlicing), ("isolated", IsolatedActivation), ("attention_scale", AttentionScale)):
        if not isinstance(getattr(net, name), kind):
            yield FieldProblem(f"/{name}", getattr(net, name), f"one of {', '.join(kind)}")
    if largest.rel_pos and net.qkv is QkvSlicing.CONTIGUOUS:
        yield FieldProblem("/qkv", net.qkv.value, f"{QkvSlicing.HEAD_ALIGNED} with rel_pos")
