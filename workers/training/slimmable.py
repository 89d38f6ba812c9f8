"""Training of a slimmable network: a few widths a step, wide ones teaching narrow ones (Scala, Zhang et al. 2024).

Section 3 of the paper, with the options that its ablations need; US-Net (Yu and Huang 2019) is one setting of it. The
losses of the widths of a step add up, without weights, and each is backpropagated before the next width runs.

Legend: B images, C channels, H, W pixels, N patches, K classes, D width of the teacher.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.architecture import Architecture
from models.distill import FeatureProjector
from models.slicing import Cut
from models.supernet import Supernet
from models.teacher import FrozenTeacher
from workers.training.compute import Compute
from workers.training.engine import Losses
from workers.training.parts import WHOLE
from workers.training.stochastic_depth import branch_scales
from workers.training.streams import PathPart, numpy_stream, torch_stream
from workers.training.supervised import ClassTeacher, LabelledBatch, decisions, supervised_loss
from workers.training.widths import WidthPlan


class SubnetTeacher(StrEnum):
    """Whom the subnets of a step learn from."""

    NEXT_LARGER = "next_larger"  # progressive knowledge transfer (Scala, section 3.3)
    FULL = "full"  # the whole network teaches all (US-Net, section 3.3)
    NONE = "none"  # nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimmableSettings:
    """What the objective is made of; the defaults are Scala's without a phase of the whole network alone.

    US-Net is ``subnet_teacher=FULL, labels_from_step=None`` with ``WidthSampling.USNET``.

    Attributes:
        plan: the slimmable network, and which widths of it a step trains.
        subnet_teacher: whom its subnets learn from.
        distill_from_step: they do so from this step on.
        labels_from_step: subnets learn labels from this step on (noise calibration); None: never.
        cross_entropy: learn labels at all. Without, the network learns tokens of a teacher, and ``labels_from_step``
            has to be None.
        kd_weight: weight of what subnets learn from their teacher; labels have weight 1.
        label_smoothing: share of the target spread over all classes.
        full_only_steps: for so many first steps only the whole network is trained.
        drop_path: probability with which the last block's branches are skipped, see ``stochastic_depth``.
        seed: of the run.
        stage: first parts of all stream names.

    Raises:
        ValueError: a number out of range, or subnets that learn nothing.
    """

    plan: WidthPlan
    subnet_teacher: SubnetTeacher = SubnetTeacher.NEXT_LARGER
    distill_from_step: int = 0
    labels_from_step: int | None = 0
    cross_entropy: bool = True
    kd_weight: float = 1.0
    label_smoothing: float = 0.1
    full_only_steps: int = 0
    drop_path: float = 0.0
    seed: int
    stage: tuple[PathPart, ...]

    def __post_init__(self) -> None:
        for name in ("distill_from_step", "labels_from_step", "kd_weight", "full_only_steps"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} {getattr(self, name)}, allowed is 0 or more")
        for name in ("label_smoothing", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}, allowed is 0 to below 1")
        if not self.cross_entropy and self.labels_from_step is not None:
            raise ValueError("labels_from_step needs cross_entropy: without it no labels are read")
        if self.subnet_teacher is SubnetTeacher.NONE and self.labels_from_step is None:
            raise ValueError("subnets learn neither labels nor from a larger network: there is nothing to learn")

    def labels_at(self, step: int) -> bool:
        """Whether subnets learn labels in a step."""
        return self.labels_from_step is not None and step >= self.labels_from_step

    def distils_at(self, step: int) -> bool:
        """Whether subnets learn from larger networks in a step."""
        return self.subnet_teacher is not SubnetTeacher.NONE and step >= self.distill_from_step


@dataclass(frozen=True, slots=True)
class _Network:
    """One of the networks of a step."""

    arch: Architecture
    cut: Cut
    drops: Tensor | None


class SlimmableTraining:
    """The objective; its weights start from streams of the run's seed.

    Args:
        settings: see :class:`SlimmableSettings`.
        compute: where everything lives.
        teacher: of the whole network's classes, on the device; None: it learns labels alone.
        feature_teacher: of its tokens, instead of all labels. Its patches are those of the network
            (``FrozenTeacher.for_student``).

    Attributes:
        supernet: the shared weights, which may be overwritten before the first step.
        projector: from its tokens to the feature teacher's width; None without one.

    Raises:
        ValueError: a teacher of the wrong kind, or a network without the heads or patches to learn with.
    """

    def __init__(
        self,
        settings: SlimmableSettings,
        compute: Compute,
        *,
        teacher: ClassTeacher | None = None,
        feature_teacher: FrozenTeacher | None = None,
    ) -> None:
        largest = settings.plan.net.largest
        _check(settings, largest, teacher, feature_teacher)
        self._settings = settings
        self._device = compute.device
        self._teacher = teacher
        self._feature_teacher = None if feature_teacher is None else feature_teacher.to(compute.device)
        self.supernet = Supernet(largest, self._stream("init", "supernet"))
        self._modules = nn.ModuleDict({"supernet": self.supernet})
        self.projector: FeatureProjector | None = None
        if feature_teacher is not None:
            generator = self._stream("init", "projector")
            self.projector = FeatureProjector(largest.embed_dim, feature_teacher.embed_dim, generator)
            self._modules["projector"] = self.projector
        self._modules.to(compute.device)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Supernet and projector; never a teacher."""
        return self._modules.named_parameters()

    def losses(self, batch: LabelledBatch, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        """Losses of the networks of a step, the whole one first; labels are not read without ``cross_entropy``."""
        networks = self._networks(len(batch.images), step, part)
        batch = batch.of(part)
        if self.projector is not None:
            return self._from_tokens(batch.images, networks)
        return self._from_labels(batch, step, networks)

    def largest_losses(self, batch: LabelledBatch, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        """Nothing: every step trains the whole network."""
        return iter(())

    def _from_labels(self, batch: LabelledBatch, step: int, networks: Iterator[_Network]) -> Iterator[Losses]:
        settings = self._settings
        taught = decisions(self._teacher, batch.images)
        larger: tuple[Tensor, ...] | None = None
        for subnet in networks:
            heads = self.supernet.logits(batch.images, subnet.arch, subnet.cut, subnet.drops)
            if larger is None:
                whole = supervised_loss(heads, batch.targets, taught, settings.label_smoothing)
                yield Losses(whole, {"whole": whole})
            else:
                yield self._subnet_losses(heads, larger, batch.targets, step)
            if larger is None or settings.subnet_teacher is SubnetTeacher.NEXT_LARGER:
                larger = tuple(head.detach() for head in heads)

    def _subnet_losses(self, heads: Sequence[Tensor], larger: Sequence[Tensor], targets: Tensor, step: int) -> Losses:
        """Labels by the class token, the larger network by the distillation token (Scala, equations 5 and 6).

        While labels are not learnt, the class token learns from the larger network's too: the answer is the mean of
        both heads, and one without any loss would spoil it.
        """
        settings = self._settings
        parts: dict[str, Tensor] = {}
        if settings.labels_at(step):
            parts["subnet_labels"] = F.cross_entropy(heads[0], targets, label_smoothing=settings.label_smoothing)
        if settings.distils_at(step):
            pairs = list(zip(heads, larger, strict=True))[-1 if parts else 0 :]
            parts["subnet_distillation"] = torch.stack([divergence(*pair) for pair in pairs]).mean()
        return self._weighted(parts)

    def _from_tokens(self, images: Tensor, networks: Iterator[_Network]) -> Iterator[Losses]:
        assert self.projector is not None, "made together with its teacher"
        assert self._feature_teacher is not None
        teacher = self._feature_teacher
        [larger] = teacher.features(images, None, after=(teacher.depth,))
        larger, is_whole = teacher.network.norm(larger), True
        for subnet in networks:
            tokens = self.supernet.tokens(images, subnet.arch, None, subnet.cut, subnet.drops)
            normed = self.supernet.final_norm(tokens, subnet.arch, subnet.cut)
            projected = self.projector(normed, subnet.cut.trailing)
            distance = token_distance(projected, larger)
            if is_whole:
                yield Losses(distance, {"whole": distance})
            else:
                yield self._weighted({"subnet_distillation": distance})
            if is_whole or self._settings.subnet_teacher is SubnetTeacher.NEXT_LARGER:
                larger, is_whole = projected.detach(), False

    def _weighted(self, parts: dict[str, Tensor]) -> Losses:
        weights = {"subnet_labels": 1.0, "subnet_distillation": self._settings.kd_weight}
        return Losses(torch.stack([weights[name] * part for name, part in parts.items()]).sum(), parts)

    def _networks(self, images: int, step: int, part: slice) -> Iterator[_Network]:
        """What a step of so many images trains, the whole network first, for a part of them."""
        settings = self._settings
        net = settings.plan.net
        widths = settings.plan.draw(numpy_stream(settings.seed, *settings.stage, "widths", step))
        alone = step < settings.full_only_steps or not (settings.labels_at(step) or settings.distils_at(step))
        for place, head_dim in enumerate(widths[:1] if alone else widths):
            drops: Tensor | None = None
            if settings.drop_path:
                generator = self._stream("depth", step, place)
                drops = branch_scales(settings.drop_path, net.largest.depth, images, generator)[:, part].to(
                    self._device
                )
            yield _Network(net.architecture(head_dim), net.cut(head_dim), drops)

    def _stream(self, *path: PathPart) -> torch.Generator:
        return torch_stream(self._settings.seed, *self._settings.stage, *path)


def divergence(student_BK: Tensor, teacher_BK: Tensor) -> Tensor:
    """KL(teacher || student) of the classes that logits stand for, the mean over images (Scala, equation 5).

    Temperature 1, computed in float32; the teacher's logits should be detached.
    """
    student, teacher = student_BK.float().log_softmax(dim=-1), teacher_BK.float().log_softmax(dim=-1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def token_distance(student_BTD: Tensor, teacher_BTD: Tensor) -> Tensor:
    """Mean squared error of the class tokens plus that of the patches, so that many patches do not drown the one.

    Args:
        student_BTD: (B, 1 + N, D), projected, class token first.
        teacher_BTD: the same of the teacher, detached.
    """
    student, teacher = student_BTD.float(), teacher_BTD.float()
    return F.mse_loss(student[:, 0], teacher[:, 0]) + F.mse_loss(student[:, 1:], teacher[:, 1:])


def _check(
    settings: SlimmableSettings,
    largest: Architecture,
    teacher: ClassTeacher | None,
    feature_teacher: FrozenTeacher | None,
) -> None:
    if settings.cross_entropy:
        if feature_teacher is not None:
            raise ValueError("a teacher of tokens replaces all labels: turn cross_entropy off, or give one of classes")
        if not largest.num_classes:
            raise ValueError("the network has no head to learn labels with: allowed is 1 class or more")
        return
    if feature_teacher is None or teacher is not None:
        found = "one of classes" if teacher is not None else "none"
        raise ValueError(f"without cross_entropy the network learns from a teacher of tokens; there is {found}")
    if largest.distilled:
        raise ValueError("a distillation token has nothing to learn from a teacher of tokens: distilled must be off")
