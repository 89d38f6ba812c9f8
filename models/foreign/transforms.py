"""From the names of a published file to timm's: small steps, each of which knows one habit of some code base.

A step looks for its own mark and leaves everything alone without it, so the list is run from its first to its last step
for every file.  What only serves another purpose than features (heads, decoders, mask tokens) is dropped and noted;
nothing else ever is, so that whatever no step knows ends up as an unexpected key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from models.foreign.tensors import Entries, Entry, Join

PATCH_EMBEDDING = "patch_embed.proj.weight"
"""The one tensor that every Vision Transformer has and nothing else."""

_HF_PATCH_EMBEDDING = "embeddings.patch_embeddings.projection.weight"

_HF_CLASS_TOKEN = "embeddings.cls_token"

# What training code wraps a network in. Of a self-distilled pair the teacher, an average of the weights, is the better
# network (Oquab et al. 2023, DINOv2), hence the order.
_WRAPPERS = ("teacher", "student", "module", "model", "backbone", "encoder", "network", "net", "vit", "dinov2")

# Compilers, sharding and activation checkpointing put themselves between any two modules.
_BETWEEN = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")

_HEADS = re.compile(r"(head|head_dist|fc_norm|fc|classifier|dino_head|ibot_head|projector|predictor|decoder)\..*")
_DECODER_BLOCK = re.compile(r"decoder_blocks\.(\d+)\..*")
_BLOCK_GAMMA = re.compile(r"(blocks\.\d+)\.gamma_([12])")
_CHUNKED_BLOCK = re.compile(r"blocks\.\d+\.(\d+)\.")


class Kind(StrEnum):
    """What a file was recognised as."""

    VIT = "vit"
    MAE_ENCODER = "mae_encoder"
    MAE = "mae"  # with its decoder
    MAE_FINETUNED = "mae_finetuned"
    DINOV2 = "dinov2"
    DINOV2_HUGGINGFACE = "dinov2_huggingface"
    DEIT_DISTILLED = "deit_distilled"


@dataclass(slots=True)
class Findings:
    """What the steps saw on their way.

    Attributes:
        kind: of the file.
        steps: names of the steps that changed something.
        dropped: tensors that serve another purpose than features, under the names that they had then.
        notes: what a person should know.
    """

    kind: Kind = Kind.VIT
    steps: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Transform = Callable[[Entries, Findings], Entries]


def strip_wrappers(entries: Entries, findings: Findings) -> Entries:
    """Take off what data parallelism, compilers and training code put before the names (``module.``, ``backbone.``)."""
    plain = {_BETWEEN.sub("", name): entry for name, entry in entries.items()}
    prefixes = _prefixes(plain)
    if not prefixes:
        return plain
    chosen, others = prefixes[0], [prefix for prefix in prefixes[1:] if prefix]
    if not chosen and not others:
        return plain
    inside: dict[str, Entry] = {}
    beside: dict[str, Entry] = {}
    for name, entry in plain.items():
        if name.startswith(tuple(others)):
            findings.dropped.append(name)
        elif name.startswith(chosen):
            inside[name[len(chosen) :]] = entry
        elif _HEADS.fullmatch(_unwrapped(name)):
            findings.dropped.append(name)
        else:
            beside[name] = entry
    for name, entry in beside.items():
        inside[name if name not in inside else f"{name} (beside {chosen[:-1]})"] = entry
    return inside


def _prefixes(names: Iterable[str]) -> list[str]:
    """Prefixes under which a network lies, the best first; the empty one is a prefix too."""
    found = {
        name.removesuffix(anchor)
        for name in names
        for anchor in (PATCH_EMBEDDING, _HF_PATCH_EMBEDDING)
        if name == anchor or name.endswith(f".{anchor}")
    }
    known = [prefix for prefix in found if all(part in _WRAPPERS for part in prefix.split(".")[:-1])]
    return sorted(known, key=lambda prefix: [_WRAPPERS.index(part) for part in prefix.split(".")[:-1]])


def _unwrapped(name: str) -> str:
    first, dot, rest = name.partition(".")
    return _unwrapped(rest) if dot and first in _WRAPPERS else name


_HF_NAMES = (
    (re.compile(r"embeddings\.(cls_token|mask_token|register_tokens)"), r"\1"),
    (re.compile(r"embeddings\.position_embeddings"), "pos_embed"),
    (re.compile(r"embeddings\.patch_embeddings\.projection\.(.*)"), r"patch_embed.proj.\1"),
    (re.compile(r"layernorm\.(.*)"), r"norm.\1"),
    (re.compile(r"encoder\.layer\.(\d+)\.(norm[12]|mlp\.fc[12])\.(.*)"), r"blocks.\1.\2.\3"),
    (re.compile(r"encoder\.layer\.(\d+)\.mlp\.weights_in\.(.*)"), r"blocks.\1.mlp.fc1.\2"),
    (re.compile(r"encoder\.layer\.(\d+)\.mlp\.weights_out\.(.*)"), r"blocks.\1.mlp.fc2.\2"),
    (re.compile(r"encoder\.layer\.(\d+)\.attention\.output\.dense\.(.*)"), r"blocks.\1.attn.proj.\2"),
    (re.compile(r"encoder\.layer\.(\d+)\.layer_scale([12])\.lambda1"), r"blocks.\1.ls\2.gamma"),
)
_HF_QUERY = re.compile(r"encoder\.layer\.(\d+)\.attention\.attention\.query\.(weight|bias)")


def huggingface_dinov2(entries: Entries, findings: Findings) -> Entries:
    """Names of Hugging Face's ``Dinov2Model``, whose queries, keys and values are three tensors."""
    if _HF_CLASS_TOKEN not in entries or _HF_PATCH_EMBEDDING not in entries:
        return entries
    findings.kind = Kind.DINOV2_HUGGINGFACE
    left = dict(entries)
    named: dict[str, Entry] = {}
    for name in entries:
        if match := _HF_QUERY.fullmatch(name):
            three = [name.replace(".query.", f".{role}.") for role in ("query", "key", "value")]
            if all(role in left for role in three) and len({left[role].shape for role in three}) == 1:
                block, kind = match.groups()
                named[f"blocks.{block}.attn.qkv.{kind}"] = Entry.stacked(left.pop(role) for role in three)
    for name in list(left):
        for pattern, replacement in _HF_NAMES:
            if match := pattern.fullmatch(name):
                named[match.expand(replacement)] = left.pop(name)
                break
    return named | left


def number_blocks_once(entries: Entries, findings: Findings) -> Entries:
    """DINOv2's training code groups blocks in chunks: ``blocks.2.7.`` is block 7."""
    numbered = {_CHUNKED_BLOCK.sub(r"blocks.\1.", name, count=1): entry for name, entry in entries.items()}
    return numbered if len(numbered) == len(entries) else entries


def deit3_scales(entries: Entries, findings: Findings) -> Entries:
    """DeiT III calls the vectors of LayerScale ``gamma_1`` and ``gamma_2`` of the block."""
    return {_BLOCK_GAMMA.sub(r"\1.ls\2.gamma", name): entry for name, entry in entries.items()}


def official_dinov2(entries: Entries, findings: Findings) -> Entries:
    """Names of the official DINOv2 files: ``register_tokens``, and ``w12``, ``w3`` of the gated MLP."""
    with_scale = any(name.endswith(".ls1.gamma") for name in entries)
    is_marked = "mask_token" in entries and with_scale and not _has_decoder(entries)
    if findings.kind is Kind.VIT and (is_marked or "register_tokens" in entries):
        findings.kind = Kind.DINOV2
    named = {name.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2."): e for name, e in entries.items()}
    if "register_tokens" not in named:
        return named
    # The official forward puts the registers in after the positions were added: only the class token has one.
    named["reg_token"] = named.pop("register_tokens")
    return _with_positions_inside(named, ("cls_token",))


def distillation_token(entries: Entries, findings: Findings) -> Entries:
    """DeiT's distillation token takes part in the attention and is read by nobody here, just as a register."""
    if "dist_token" not in entries or "reg_token" in entries:
        return entries
    findings.kind = Kind.DEIT_DISTILLED
    named = dict(entries)
    named["reg_token"] = named.pop("dist_token")
    return _with_positions_inside(named, ("cls_token", "reg_token"))


def positions_of_registers(entries: Entries, findings: Findings) -> Entries:
    """timm networks whose position table has rows for the class token and for each register."""
    if "reg_token" not in entries or "pos_embed" not in entries or len(entries["reg_token"].shape) != _TOKENS_DIM:
        return entries
    rows = entries["pos_embed"].shape[1:2]
    patches = sum(rows) - 1 - entries["reg_token"].shape[1]
    if patches < 1 or is_square(sum(rows)) or not is_square(patches):
        return entries
    return _with_positions_inside(dict(entries), ("cls_token", "reg_token"))


_TOKENS_DIM = 3  # (1, tokens, width)


def _with_positions_inside(entries: dict[str, Entry], prefix: tuple[str, ...]) -> Entries:
    """Add the positions of prefix tokens to the tokens themselves, once and for all; the sum is the same."""
    whole = [entries.get(name) for name in ("pos_embed", *prefix)]
    if any(e is None or len(e.shape) != _TOKENS_DIM or len(e.parts) != 1 for e in whole):
        return entries  # which is then told as missing or misshapen
    table = entries["pos_embed"].part
    start = 0
    for name in prefix:
        stop = start + entries[name].shape[1]
        entries[name] = Entry((entries[name].part, table.tokens(start, stop)), Join.SUM)
        start = stop
    if start >= table.shape[1]:
        return entries
    entries["pos_embed"] = Entry((table.tokens(start, table.shape[1]),))
    return entries


def mae_decoder(entries: Entries, findings: Findings) -> Entries:
    """The decoder of a whole masked autoencoder: noted and dropped, only features are wanted of a teacher."""
    if not _has_decoder(entries):
        return entries
    findings.kind = Kind.MAE
    blocks = {match[1] for name in entries if (match := _DECODER_BLOCK.fullmatch(name))}
    shape = entries["decoder_embed.weight"].shape if "decoder_embed.weight" in entries else ("unknown",)
    findings.notes.append(
        f"The file holds a decoder of {len(blocks)} blocks of width {shape[0]}, which was left out. Whether it "
        "paints normalised or plain pixels (the files for visualisation) cannot be told from the keys."
    )
    return _without(entries, findings, lambda name: name.startswith("decoder_") or name == "mask_token")


def _has_decoder(entries: Entries) -> bool:
    return any(name.startswith("decoder_") for name in entries)


def training_parts(entries: Entries, findings: Findings) -> Entries:
    """Heads and mask tokens, which only training or classification needs."""
    if findings.kind is Kind.VIT and "fc_norm.weight" in entries and "norm.weight" not in entries:
        findings.kind = Kind.MAE_FINETUNED
        findings.notes.append(
            "The norm comes after the pooling (fc_norm), as in fine-tuned MAE files and in timm's networks with "
            "average pooling; the keys do not tell the two apart."
        )
    return _without(entries, findings, lambda name: name == "mask_token" or bool(_HEADS.fullmatch(name)))


def _without(entries: Entries, findings: Findings, is_unwanted: Callable[[str], bool]) -> Entries:
    findings.dropped += [name for name in entries if is_unwanted(name)]
    return {name: entry for name, entry in entries.items() if not is_unwanted(name)}


def is_square(number: int) -> bool:
    """True when so many patches can be the grid of a square image."""
    return number > 0 and math.isqrt(number) ** 2 == number


TRANSFORMS: tuple[Transform, ...] = (
    strip_wrappers,
    huggingface_dinov2,
    number_blocks_once,
    deit3_scales,
    official_dinov2,
    distillation_token,
    positions_of_registers,
    mae_decoder,
    training_parts,
)
"""All steps, in their order."""


def run_transforms(entries: Entries) -> tuple[Entries, Findings]:
    """Run every step, and note those that changed something."""
    findings = Findings()
    for transform in TRANSFORMS:
        changed = transform(entries, findings)
        if dict(changed) != dict(entries):
            findings.steps.append(transform.__name__)
        entries = changed
    return entries, findings
