"""Masked image modelling with and without a teacher: one objective trains the supernet and pretrains its teacher.

Each step draws one mask per image and one or several architectures. All students of a step, and the teacher, see the
same images; the loss of a student is ``reconstruction + beta * feature distillation`` (MaskTAS, section 3), that of a
step its mean over the students. A teacher is pretrained by the same objective without distillation on a space of one
member, where it is MAE (He et al. 2022).

Legend: B images, C channels, H, W pixels, N patches, V visible patches, P values of one patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from models.architecture import Architecture
from models.distill import DistillConfig, FeatureProjector, feature_loss
from models.masked import (
    DecoderConfig,
    MaskedDecoder,
    PatchMask,
    hidden_error,
    pick_patches,
    pixel_target,
    random_masking,
    visible_patches,
)
from models.relations import block_at
from models.supernet import Supernet
from models.teacher import FrozenTeacher
from search.space import Space
from workers.data.dataset import ImageSet
from workers.training.compute import Compute
from workers.training.crops import RandomCrop
from workers.training.engine import Losses
from workers.training.parts import WHOLE
from workers.training.schedule import BatchOrder
from workers.training.streams import PathPart, numpy_stream, torch_stream
from workers.training.subnets import Sampling, SubnetPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSettings:
    """What the objective is made of.

    Attributes:
        space: architectures to draw from; one member for a teacher.
        subnets: how they are drawn. With sampling by widths each student learns relations from the next wider one,
            and only the widest from the teacher.
        mask_ratio: share of the patches that is hidden.
        decoder: size of the decoder; None when there is neither reconstruction nor distillation at hidden patches.
        reconstruction: reconstruct hidden patches, if there is a decoder.
        norm_targets: reconstruct pixels normalised per patch.
        teacher_share: weight of the teacher's prediction in what is reconstructed; the pixels have the rest.
        beta: weight of the distillation, which a teacher turns on.
        distill: what is distilled and how; None turns it off, whatever teacher there is.
        seed: of the run.
        stage: name of the stage, first part of all stream names.
    """

    space: Space
    subnets: SubnetPlan = field(default_factory=SubnetPlan)
    mask_ratio: float
    decoder: DecoderConfig | None
    reconstruction: bool = True
    norm_targets: bool
    teacher_share: float = 0.0
    beta: float
    distill: DistillConfig | None = field(default_factory=DistillConfig)
    seed: int
    stage: str


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What distillation compares, (B, 1 + V, ...) and (B, 1 + N - V, ...) with the class token first; None: not."""

    visible: Tensor | None
    hidden: Tensor | None

    def detach(self) -> _Tokens:
        """The same without gradient, to be learnt from."""
        return _Tokens(*(None if t is None else t.detach() for t in (self.visible, self.hidden)))


class MaskedDistillation:
    """The objective; its weights start from streams of the run's seed.

    Args:
        settings: see :class:`MaskedSettings`.
        teacher: frozen; None turns distillation off.
        compute: where everything lives.
        teacher_decoder: frozen, of the teacher's own pretraining; for its predictions of the pixels.

    Attributes:
        supernet: shared weights of all students.
        decoder: see :class:`MaskedSettings`.
        projector: of visible tokens to the teacher's width; None when none are projected.

    Raises:
        ValueError: when neither part is left, a part lacks what it needs, or the mask leaves nothing to see or to
            reconstruct.
    """

    def __init__(
        self,
        settings: MaskedSettings,
        teacher: FrozenTeacher | None,
        compute: Compute,
        *,
        teacher_decoder: MaskedDecoder | None = None,
    ) -> None:
        self._reconstructs = settings.reconstruction and settings.decoder is not None
        self._distill = settings.distill if teacher is not None else None
        self._check(settings, teacher_decoder)
        largest = settings.space.largest()
        self._settings = settings
        self._keep = visible_patches(largest.num_patches, settings.mask_ratio)
        self._device = compute.device
        self.supernet = Supernet(largest, self._stream("init", "supernet"))
        self._modules = nn.ModuleDict({"supernet": self.supernet})
        self.decoder: MaskedDecoder | None = None
        if settings.decoder is not None:
            self.decoder = MaskedDecoder(largest, settings.decoder, self._stream("init", "decoder"))
            self._modules["decoder"] = self.decoder
        self.projector: FeatureProjector | None = None
        self._hidden_projector: FeatureProjector | None = None
        self._teacher = teacher.to(compute.device) if teacher is not None else None
        self._teacher_decoder = teacher_decoder.to(compute.device) if teacher_decoder is not None else None
        if teacher is not None and self._distill is not None and self._distill.projects:
            if self._distill.visible:
                self.projector = self._projector("projector", largest.embed_dim, teacher.embed_dim)
            if self._distill.hidden and settings.decoder is not None:
                self._hidden_projector = self._projector("hidden_projector", settings.decoder.dim, teacher.embed_dim)
        self._modules.to(compute.device)

    def _check(self, settings: MaskedSettings, teacher_decoder: MaskedDecoder | None) -> None:
        if not self._reconstructs and self._distill is None:
            raise ValueError("reconstruction and distillation are both off: there would be nothing to learn")
        if self._distill is not None and self._distill.hidden and settings.decoder is None:
            raise ValueError("distillation at hidden patches reads decoder tokens, and there is no decoder")
        if settings.teacher_share and (teacher_decoder is None or not self._reconstructs):
            raise ValueError("reconstructing the teacher's prediction needs reconstruction and the teacher's decoder")

    def _projector(self, name: str, width: int, teacher_width: int) -> FeatureProjector:
        assert self._distill is not None
        projector = FeatureProjector(width, teacher_width, self._stream("init", name), self._distill.projector)
        self._modules[name] = projector
        return projector

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Supernet, decoder and projectors; never the teacher."""
        return self._modules.named_parameters()

    def losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        """Losses of images (B, C, H, W) under the mask of ``step``, one for each student; they add up to their mean."""
        settings = self._settings
        rng = numpy_stream(settings.seed, settings.stage, "architecture", step)
        return self._losses(batch, step, part, settings.subnets.draw(settings.space, rng))

    def largest_losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        """The same of the largest student that a step may draw, unless every step trains it."""
        largest = self._settings.subnets.largest(self._settings.space)
        return iter(()) if largest is None else self._losses(batch, step, part, (largest,))

    def _losses(self, batch: Tensor, step: int, part: slice, students: Sequence[Architecture]) -> Iterator[Losses]:
        settings = self._settings
        mask = self._mask(len(batch), step).of(part)
        batch = batch[part]
        teaching, pixels = self._targets(batch, mask)
        for arch in students:
            tokens, predicted = self._student(batch, mask, arch)
            parts: dict[str, Tensor] = {}
            if pixels is not None and predicted is not None:
                parts["reconstruction"] = hidden_error(predicted, pixels, mask.hidden) / len(students)
            if teaching is not None:
                parts["distillation"] = self._distance(tokens, teaching) / len(students)
                if settings.subnets.sampling is Sampling.WIDTHS:
                    teaching = tokens.detach()
            weights = {"reconstruction": 1.0, "distillation": settings.beta}
            yield Losses(torch.stack([weights[name] * value for name, value in parts.items()]).sum(), parts)

    def _student(self, batch: Tensor, mask: PatchMask, arch: Architecture) -> tuple[_Tokens, Tensor | None]:
        """What a student shows of itself to be compared, and its prediction of the pixels (B, N, P)."""
        distill = self._distill
        compared = block_at(distill.layer.share, arch.depth) if distill is not None else arch.depth
        after = sorted({compared, arch.depth} if self.decoder is not None else {compared})
        tokens = dict(zip(after, self.supernet.features(batch, arch, mask.ids_keep, after=after), strict=True))
        visible = tokens[compared] if distill is not None and distill.visible else None
        if self.decoder is None:
            return _Tokens(visible, None), None
        decoded = self.decoder.tokens(self.supernet.final_norm(tokens[arch.depth], arch), mask.ids_restore)
        hidden = pick_patches(decoded, mask.ids_hidden) if distill is not None and distill.hidden else None
        return _Tokens(visible, hidden), self.decoder.pixels(decoded) if self._reconstructs else None

    def _distance(self, student: _Tokens, teaching: _Tokens) -> Tensor:
        """Distillation loss: the mean over all compared patches."""
        assert self._distill is not None, "what teaches is asked for only then"
        losses, patches = [], []
        for tokens, target, projector in (
            (student.visible, teaching.visible, self.projector),
            (student.hidden, teaching.hidden, self._hidden_projector),
        ):
            if tokens is not None and target is not None:
                losses.append(feature_loss(tokens if projector is None else projector(tokens), target, self._distill))
                patches.append(tokens.shape[1] - 1)
        if len(losses) == 1:
            return losses[0]
        return torch.stack([loss * (count / sum(patches)) for loss, count in zip(losses, patches, strict=True)]).sum()

    @torch.no_grad()
    def _targets(self, batch: Tensor, mask: PatchMask) -> tuple[_Tokens | None, Tensor | None]:
        """What all students of a step learn: tokens of the teacher, and what is to be reconstructed (B, N, P)."""
        settings = self._settings
        teaching, predicted = self._ask_teacher(batch, mask)
        if not self._reconstructs:
            return teaching, None
        pixels = pixel_target(batch, self.supernet.largest.patch_size, norm_targets=settings.norm_targets)
        if predicted is not None:
            # One target: the error to a mean and the mean of the errors differ by a constant only.
            pixels = (1 - settings.teacher_share) * pixels + settings.teacher_share * predicted.float()
        return teaching, pixels

    def _ask_teacher(self, batch: Tensor, mask: PatchMask) -> tuple[_Tokens | None, Tensor | None]:
        """The teacher's tokens, and its prediction of the pixels (B, N, P); None for what nobody learns."""
        teacher, distill = self._teacher, self._distill
        if teacher is None:
            return None, None
        compared = block_at(distill.layer.share, teacher.depth) if distill is not None else teacher.depth
        predicts = self._teacher_decoder is not None and self._settings.teacher_share > 0
        visible = distill is not None and distill.visible
        after = sorted({*((compared,) if visible else ()), *((teacher.depth,) if predicts else ())})
        seen: dict[int, Tensor] = {}
        if after:
            seen = dict(zip(after, teacher.features(batch, mask.ids_keep, after=after), strict=True))
        predicted: Tensor | None = None
        if self._teacher_decoder is not None and predicts:
            predicted = self._teacher_decoder(teacher.network.norm(seen[teacher.depth]), mask.ids_restore)
        if distill is None:
            return None, predicted
        hidden: Tensor | None = None
        if distill.hidden:
            [whole] = teacher.features(batch, None, after=(compared,))
            hidden = pick_patches(whole, mask.ids_hidden)
        return _Tokens(seen[compared] if visible else None, hidden), predicted

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

    @property
    def batch_size(self) -> int:
        """Images of each batch."""
        return self.order.batch_size

    def at(self, step: int) -> Tensor:
        """Normalised images (B, C, H, W) of a step."""
        images = self.images.batch(self.order.positions(step)).to(self.compute.device)
        if self.crop.changes_nothing:
            return images
        return self.crop.apply(images, torch_stream(self.order.seed, *self.order.stage, "crop", step))
