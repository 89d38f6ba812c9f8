"""Masked image modelling with and without a teacher: one objective trains the supernet and pretrains its teacher.

Each step draws one mask per image and one architecture, each gene uniform. Student and teacher see the same visible
patches and nothing else; the loss is ``reconstruction + beta * feature distillation`` (MaskTAS, section 3). A teacher
is pretrained by the same objective without distillation on a space of one member, where it is MAE (He et al. 2022).

Legend: B images, C channels, H, W pixels, V visible patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.distill import FeatureProjector, feature_loss
from models.masked import (
    DecoderConfig,
    MaskedDecoder,
    PatchMask,
    random_masking,
    reconstruction_loss,
    visible_patches,
)
from models.supernet import Supernet
from models.teacher import FrozenTeacher
from search.space import Space
from workers.data.dataset import ImageSet
from workers.training.compute import Compute
from workers.training.crops import RandomCrop
from workers.training.engine import Losses
from workers.training.schedule import BatchOrder
from workers.training.streams import PathPart, numpy_stream, torch_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSettings:
    """What the objective is made of.

    Attributes:
        space: architectures to draw from; one member for a teacher.
        mask_ratio: share of the patches that is hidden.
        decoder: size of the decoder; None turns reconstruction off.
        norm_targets: reconstruct pixels normalised per patch.
        beta: weight of the distillation, which a teacher turns on.
        seed: of the run.
        stage: name of the stage, first part of all stream names.
    """

    space: Space
    mask_ratio: float
    decoder: DecoderConfig | None
    norm_targets: bool
    beta: float
    seed: int
    stage: str


class MaskedDistillation:
    """The objective; its weights start from streams of the run's seed.

    Args:
        settings: see :class:`MaskedSettings`.
        teacher: frozen, gives features of the visible patches; None turns distillation off.
        compute: where everything lives.

    Raises:
        ValueError: when neither part is left, or the mask leaves nothing to see or to reconstruct.
    """

    def __init__(self, settings: MaskedSettings, teacher: FrozenTeacher | None, compute: Compute) -> None:
        if settings.decoder is None and teacher is None:
            raise ValueError("reconstruction and distillation are both off: there would be nothing to learn")
        largest = settings.space.largest()
        self._settings = settings
        self._keep = visible_patches(largest.num_patches, settings.mask_ratio)
        self._device = compute.device
        self.supernet = Supernet(largest, self._stream("init", "supernet"))
        self._modules = nn.ModuleDict({"supernet": self.supernet})
        self.decoder: MaskedDecoder | None = None
        self.projector: FeatureProjector | None = None
        self._teacher = teacher
        if settings.decoder is not None:
            self.decoder = MaskedDecoder(largest, settings.decoder, self._stream("init", "decoder"))
            self._modules["decoder"] = self.decoder
        if teacher is not None:
            generator = self._stream("init", "projector")
            self.projector = FeatureProjector(largest.embed_dim, teacher.embed_dim, generator)
            self._modules["projector"] = self.projector
            teacher.to(compute.device)
        self._modules.to(compute.device)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Supernet, decoder and projector; never the teacher."""
        return self._modules.named_parameters()

    def losses(self, batch: Tensor, step: int) -> Iterator[Losses]:
        """Losses of images (B, C, H, W) under the mask and the architecture of ``step``."""
        settings = self._settings
        mask = self._mask(len(batch), step)
        arch = settings.space.sample(numpy_stream(settings.seed, settings.stage, "architecture", step))
        tokens = self.supernet.tokens(batch, arch, mask.ids_keep)
        parts: dict[str, Tensor] = {}
        if self.decoder is not None:
            predicted = self.decoder(self.supernet.final_norm(tokens, arch), mask.ids_restore)
            parts["reconstruction"] = reconstruction_loss(
                predicted, batch, mask.hidden, arch.patch_size, norm_targets=settings.norm_targets
            )
        if self._teacher is not None and self.projector is not None:
            features = self._teacher.visible_tokens(batch, mask.ids_keep)
            parts["distillation"] = feature_loss(self.projector(tokens), features)
        weights = {"reconstruction": 1.0, "distillation": settings.beta}
        yield Losses(torch.stack([weights[name] * part for name, part in parts.items()]).sum(), parts)

    def _mask(self, images: int, step: int) -> PatchMask:
        patches = self.supernet.largest.num_patches
        return random_masking(images, patches, self._keep, self._stream("mask", step)).to(self._device)

    def _stream(self, *path: PathPart) -> torch.Generator:
        return torch_stream(self._settings.seed, self._settings.stage, *path)


@dataclass(frozen=True, slots=True)
class ImageBatches:
    """Batches of images without labels; whoever reads a batch, student or teacher, gets the same crops."""

    images: ImageSet
    order: BatchOrder
    crop: RandomCrop
    compute: Compute

    def at(self, step: int) -> Tensor:
        """Normalised images (B, C, H, W) of a step."""
        images = self.images.batch(self.order.positions(step)).to(self.compute.device)
        if self.crop.changes_nothing:
            return images
        return self.crop.apply(images, torch_stream(self.order.seed, *self.order.stage, "crop", step))
