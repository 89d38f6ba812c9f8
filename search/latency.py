"""Latency of a network as a sum over its parts: one table for one device, runtime and setting.

Blocks of a plain Vision Transformer run one after the other, so its latency is close to a sum: what the embedding, the
last norm and the head of a width take together with the constant overhead of a call, and what each block takes by its
head count and MLP ratio (the look-up tables of ProxylessNAS, Cai et al. 2019, section 3.3, and of Once-for-All, Cai et
al. 2020, section 3.4).  How close it comes is measured, not assumed: a table carries what it predicted for networks
that took no part in the fit, beside what these really took.

Times are whole nanoseconds, so that sums are exact and a limit is met or not without rounding.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import product
from typing import Any

from models.architecture import Architecture, ArchitectureError, FieldProblem, Genotype, escape_pointer, is_int
from search.cost import macs
from search.errors import SpecError
from search.space import Space

SCHEMA_VERSION = 1

MS = 1_000_000
"""Nanoseconds of one millisecond."""

MAX_NS = 10**12
"""Longest time of an entry or of a network: a thousand seconds."""

MAX_WIDTHS = 64
MAX_BLOCKS = 4096
MAX_HELD_OUT = 1000
"""Most entries of the lists of a table; far beyond what anybody measures, and small enough to store in a job."""

MAX_BATCH = 4096
"""Images of one call."""

MAX_LABEL = 100
"""Characters of a device's label."""

HEAD_SLACK = 0.01
"""A table serves networks with another number of classes while the heads differ by at most this share of a network's
MACs: far below what a fit is off, and it saves a table for each dataset."""


class Runtime(StrEnum):
    """What executes the network."""

    TORCH = "torch"
    ONNXRUNTIME = "onnxruntime"


class Precision(StrEnum):
    """Number format that the network computes in."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


class LatencyError(SpecError):
    """A table cannot be read, fitted, or used for a network. Pointers are relative to its JSON, or as said there."""


_BOUNDS: dict[str, tuple[int, int]] = {
    "batch_size": (1, MAX_BATCH),
    "threads": (1, 4096),
    "percentile": (1, 99),
    "warmup_runs": (0, 1_000_000),
    "runs": (1, 1_000_000),
}
_NETWORK = ("img_size", "patch_size", "in_chans", "head_dim", "rel_pos")
"""What all networks of a table have in common, beside about the same head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySetting:
    """What was measured, and how: two tables can be compared only when these agree.

    Attributes:
        device: label of the machine, for people.
        runtime: what executed the networks.
        precision: number format.
        batch_size: images of one call; latencies are of the call, not of one image.
        threads: of one operation.
        percentile: which of the repeated calls counts; 50 is the median.
        warmup_runs: calls before those that count.
        runs: calls that count, for each network.
        img_size, patch_size, in_chans, head_dim, num_classes, rel_pos: of the networks, as in
            :class:`models.architecture.Architecture`.

    Raises:
        LatencyError: with one problem for each field at fault.
    """

    device: str
    runtime: Runtime
    precision: Precision
    batch_size: int
    threads: int
    percentile: int
    warmup_runs: int
    runs: int
    img_size: int
    patch_size: int
    in_chans: int
    head_dim: int
    num_classes: int
    rel_pos: bool

    def __post_init__(self) -> None:
        if problems := tuple(_setting_problems(self)):
            raise LatencyError(problems)
        object.__setattr__(self, "runtime", Runtime(self.runtime))
        object.__setattr__(self, "precision", Precision(self.precision))


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A network that took no part in the fit, as it was predicted and as it was measured."""

    genotype: Genotype
    predicted_ns: int
    measured_ns: int

    @property
    def error(self) -> float:
        """Distance of the prediction from the measurement, as a share of the measurement."""
        return abs(self.predicted_ns - self.measured_ns) / self.measured_ns


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Latency of any network whose parts have entries: their exact sum.

    Attributes:
        setting: what was measured, and how.
        fixed_ns: by width: all but the blocks, that is the call, the embedding, the last norm and the head.
        block_ns: by (width, heads, ratio): one block.
        held_out: networks that tell how far predictions are off; may be empty.

    Raises:
        LatencyError: entries that are no times, too many of them, blocks of a width without a fixed entry.
    """

    setting: LatencySetting
    fixed_ns: Mapping[int, int]
    block_ns: Mapping[tuple[int, int, float], int]
    held_out: tuple[HeldOut, ...] = ()

    def __post_init__(self) -> None:
        if problems := tuple(_entry_problems(self)):
            raise LatencyError(problems)
        object.__setattr__(self, "fixed_ns", dict(sorted(self.fixed_ns.items())))
        blocks = sorted(((width, heads, float(ratio)), ns) for (width, heads, ratio), ns in self.block_ns.items())
        object.__setattr__(self, "block_ns", dict(blocks))
        object.__setattr__(self, "held_out", tuple(self.held_out))

    def __hash__(self) -> int:
        return hash((self.setting, tuple(self.fixed_ns.items()), tuple(self.block_ns.items())))

    def predict_ns(self, arch: Architecture) -> int:
        """Latency of a network in nanoseconds.

        Raises:
            LatencyError: the table has no entry for a part, or is for other networks; pointers are into the network.
        """
        if problems := self.explain(arch):
            raise LatencyError(problems)
        blocks = zip(arch.num_heads, arch.mlp_ratio, strict=True)
        return self.fixed_ns[arch.embed_dim] + sum(self.block_ns[arch.embed_dim, *block] for block in blocks)

    def explain(self, arch: Architecture) -> tuple[FieldProblem, ...]:
        """What keeps the table from pricing a network: each field with what was found and what has entries."""
        problems = list(self._constant_problems(arch))
        if arch.embed_dim not in self.fixed_ns:
            return (*problems, FieldProblem("/embed_dim", arch.embed_dim, _one_of(self.fixed_ns)))
        known = self._ratios(arch.embed_dim)
        for i, (heads, ratio) in enumerate(zip(arch.num_heads, arch.mlp_ratio, strict=True)):
            if ratio not in known.get(heads, ()):
                problems.append(_block_gap(known, arch.embed_dim, heads, ratio, f"/{i}"))
        return tuple(problems)

    def gaps(self, space: Space, num_classes: int) -> tuple[FieldProblem, ...]:
        """What keeps the table from pricing every member of a space; empty when nothing does.

        Args:
            space: whose members are to be priced; pointers name its axes.
            num_classes: of their head.
        """
        problems = list(self._constant_problems(space.smallest(num_classes)))
        found: dict[tuple[str, float], FieldProblem] = {}
        for width in space.embed_dim:
            if width not in self.fixed_ns:
                found["/embed_dim", width] = FieldProblem("/embed_dim", width, _one_of(self.fixed_ns))
                continue
            known = self._ratios(width)
            for heads, ratio in product(space.num_heads, space.mlp_ratio):
                gene = ("/mlp_ratio", ratio) if heads in known else ("/num_heads", heads)
                if ratio not in known.get(heads, ()) and gene not in found:
                    found[gene] = _block_gap(known, width, heads, ratio, "")
        return (*problems, *found.values())

    @property
    def mape(self) -> float | None:
        """Mean absolute error of the held-out networks as a share of what they took; None without any."""
        errors = [network.error for network in self.held_out]
        return math.fsum(errors) / len(errors) if errors else None

    def digest(self) -> str:
        """SHA-256 (hex) of the JSON form."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The table as a JSON object; :meth:`from_json` reads it back to an equal record.

        ``fixed_ns`` has rows ``[width, ns]``, ``block_ns`` rows ``[width, heads, ratio, ns]``.
        """
        return {
            "schema_version": SCHEMA_VERSION,
            **asdict(self.setting),
            "runtime": self.setting.runtime.value,
            "precision": self.setting.precision.value,
            "fixed_ns": [list(row) for row in self.fixed_ns.items()],
            "block_ns": [[*key, ns] for key, ns in self.block_ns.items()],
            "held_out": [{**asdict(network), "genotype": list(network.genotype)} for network in self.held_out],
        }

    @classmethod
    def from_json(cls, document: object) -> LatencyTable:
        """Read a table that anybody may have written, strictly.

        Raises:
            LatencyError: with one problem for each key, list or row at fault.
        """
        known = {"schema_version", *(field.name for field in fields(LatencySetting)), *_LISTS}
        given = _keys_checked(document, "", known)
        if not is_int(given["schema_version"]) or given["schema_version"] != SCHEMA_VERSION:
            raise LatencyError([FieldProblem("/schema_version", _shown(given["schema_version"]), str(SCHEMA_VERSION))])
        for name, (most, _) in _LISTS.items():
            if not isinstance(given[name], list) or len(given[name]) > most:
                raise LatencyError([FieldProblem(f"/{name}", _shown(given[name]), f"a list of at most {most}")])
        setting = LatencySetting(**{field.name: given[field.name] for field in fields(LatencySetting)})
        rows = {name: [_row(name, i, row) for i, row in enumerate(given[name])] for name in ("fixed_ns", "block_ns")}
        return cls(
            setting,
            _by_key("fixed_ns", [(row[0], row[1]) for row in rows["fixed_ns"]]),
            _by_key("block_ns", [((row[0], row[1], row[2]), row[3]) for row in rows["block_ns"]]),
            tuple(_held_out(i, entry) for i, entry in enumerate(given["held_out"])),
        )

    def _constant_problems(self, arch: Architecture) -> Iterator[FieldProblem]:
        for name in _NETWORK:
            found, measured = getattr(arch, name), getattr(self.setting, name)
            if found != measured:
                yield FieldProblem(f"/{name}", found, f"{measured}, which the networks of the table have")
        for name in ("distilled", "layer_scale"):
            if getattr(arch, name):
                yield FieldProblem(f"/{name}", True, "false: the networks of the table have none")
        heads_apart = abs(arch.num_classes - self.setting.num_classes) * arch.embed_dim
        if heads_apart > HEAD_SLACK * macs(arch.with_classes(0)):
            allowed = (
                f"about {self.setting.num_classes}, which the networks of the table have: heads so different count"
            )
            yield FieldProblem("/num_classes", arch.num_classes, allowed)

    def _ratios(self, width: int) -> dict[int, set[float]]:
        """Ratios that have an entry at a width, by head count."""
        known: dict[int, set[float]] = {}
        for of_width, heads, ratio in self.block_ns:
            if of_width == width:
                known.setdefault(heads, set()).add(ratio)
        return known


def _block_gap(known: Mapping[int, set[float]], width: int, heads: int, ratio: float, at: str) -> FieldProblem:
    """The gene without an entry at this width: heads that never occur, else the ratio."""
    if heads not in known:
        return FieldProblem(f"/num_heads{at}", heads, f"{_one_of(known)} at width {width}")
    return FieldProblem(f"/mlp_ratio{at}", ratio, f"{_one_of(known[heads])} at width {width} with {heads} heads")


def _setting_problems(setting: LatencySetting) -> Iterator[FieldProblem]:
    if not isinstance(setting.device, str) or not 1 <= len(setting.device) <= MAX_LABEL or "\x00" in setting.device:
        yield FieldProblem("/device", _shown(setting.device), f"a text of 1 to {MAX_LABEL} characters")
    for name, kind in (("runtime", Runtime), ("precision", Precision)):
        if getattr(setting, name) not in tuple(kind):
            yield FieldProblem(f"/{name}", _shown(getattr(setting, name)), f"one of {', '.join(kind)}")
    for name, (low, high) in _BOUNDS.items():
        if not is_int(value := getattr(setting, name)) or not low <= value <= high:
            yield FieldProblem(f"/{name}", _shown(value), f"an integer from {low} to {high}")
    try:
        # Fields of the network are what the record says; its genes are not at issue here.
        constants = {name: getattr(setting, name) for name in (*_NETWORK, "num_classes")}
        Architecture(embed_dim=1, depth=1, num_heads=(1,), mlp_ratio=(1.0,), **constants)
    except ArchitectureError as error:
        yield from (FieldProblem(p.pointer, _shown(p.found), p.allowed) for p in error.problems)


def _entry_problems(table: LatencyTable) -> Iterator[FieldProblem]:
    for name, entries, most in (
        ("fixed_ns", table.fixed_ns, MAX_WIDTHS),
        ("block_ns", table.block_ns, MAX_BLOCKS),
        ("held_out", table.held_out, MAX_HELD_OUT),
    ):
        if len(entries) > most or (not entries and name != "held_out"):
            yield FieldProblem(f"/{name}", f"{len(entries)} entries", f"1 to {most} entries")
    for name, times in (("fixed_ns", table.fixed_ns), ("block_ns", table.block_ns)):
        for i, ns in enumerate(times.values()):
            if not is_int(ns) or not 0 <= ns <= MAX_NS:
                yield FieldProblem(f"/{name}/{i}", _shown(ns), f"a time of 0 to {MAX_NS} nanoseconds")
    for i, (width, _, _) in enumerate(table.block_ns):
        if width not in table.fixed_ns:
            yield FieldProblem(f"/block_ns/{i}", width, f"a width of fixed_ns, {_one_of(table.fixed_ns)}")


_LISTS = {"fixed_ns": (MAX_WIDTHS, 2), "block_ns": (MAX_BLOCKS, 4), "held_out": (MAX_HELD_OUT, None)}
"""Most entries, and numbers of a row."""


def _keys_checked(document: object, base: str, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise LatencyError([FieldProblem(base, _shown(document), "an object")])
    problems = [
        FieldProblem(f"{base}/{escape_pointer(_shown(key))}", _shown(key), f"one of {', '.join(sorted(known))}")
        for key in document
        if key not in known
    ]
    problems += [FieldProblem(f"{base}/{key}", None, "required") for key in sorted(known) if key not in document]
    if problems:
        raise LatencyError(problems[:MAX_WIDTHS])
    return document


def _row(name: str, i: int, row: object) -> list[Any]:
    length = _LISTS[name][1]
    wrong = FieldProblem(f"/{name}/{i}", _shown(row), f"{length} numbers: the genes within their bounds, then the time")
    if not isinstance(row, list) or len(row) != length:
        raise LatencyError([wrong])
    heads: Any = row[1] if length == 4 else 1
    ratio: Any = row[2] if length == 4 else 1
    try:
        Architecture(embed_dim=row[0], depth=1, num_heads=(heads,), mlp_ratio=(ratio,))
    except ArchitectureError as error:
        raise LatencyError([wrong]) from error
    return row


def _by_key(name: str, rows: Sequence[tuple[Any, int]]) -> dict[Any, int]:
    entries: dict[Any, int] = {}
    for i, (key, ns) in enumerate(rows):
        if key in entries:
            raise LatencyError([FieldProblem(f"/{name}/{i}", _shown(key), "each entry once")])
        entries[key] = ns
    return entries


def _held_out(i: int, entry: object) -> HeldOut:
    base = f"/held_out/{i}"
    given = _keys_checked(entry, base, {field.name for field in fields(HeldOut)})
    for name in ("predicted_ns", "measured_ns"):
        least = 0 if name == "predicted_ns" else 1
        if not is_int(given[name]) or not least <= given[name] <= MAX_NS:
            raise LatencyError(
                [FieldProblem(f"{base}/{name}", _shown(given[name]), f"{least} to {MAX_NS} nanoseconds")]
            )
    genes = given["genotype"]
    allowed = "depth, then as many ratios, as many head counts, and the width"
    wrong = LatencyError([FieldProblem(f"{base}/genotype", _shown(genes), allowed)])
    if not isinstance(genes, list) or not genes or not is_int(genes[0]) or len(genes) != 2 * genes[0] + 2:
        raise wrong
    depth = genes[0]
    try:
        arch = Architecture(
            embed_dim=genes[-1],
            depth=depth,
            mlp_ratio=tuple(genes[1 : 1 + depth]),
            num_heads=tuple(genes[1 + depth : -1]),
        )
    except ArchitectureError as error:
        raise wrong from error
    return HeldOut(arch.genotype, given["predicted_ns"], given["measured_ns"])


def _one_of(values: Iterable[float]) -> str:
    return f"one of {', '.join(f'{value:g}' for value in sorted(values))}"


def _shown(value: object) -> str:
    """What was found, cut to a readable length: it may be anything of any size."""
    return value[:60] if isinstance(value, str) else reprlib.repr(value)
