"""What is read from tokens of subnets: the measures of one view at one block, each computed once for all who ask.

Legend: B images of a batch, V visible patches, d student width, D teacher width, N patches, P values of a patch.
"""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from models.distill import target_distance
from models.masked import hidden_error, pixel_target
from models.relations import consistency_score
from models.supernet import Subnet
from search.measures import Measure
from workers.stages.scoring.settings import ScoringSettings, TrainedParts
from workers.stages.scoring.views import View
from workers.training.compute import Compute


class Batch:
    """The images of a view, and what candidates have in common before their first block.

    Args:
        view: see :class:`View`.
        images: (B, C, H, W) of it, on the device.
        patch_size: in pixels.
        norm_targets: of the reconstruction.
    """

    def __init__(self, view: View, images: Tensor, patch_size: int, norm_targets: bool) -> None:
        self.view = view
        self.images = images
        self._patch_size = patch_size
        self._norm_targets = norm_targets

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def pixels(self) -> Tensor:
        """(B, N, P), what the decoder is to predict."""
        return pixel_target(self.images, self._patch_size, norm_targets=self._norm_targets)


class Readout:
    """Measures of the tokens after one block.

    Args:
        tokens: (B, 1 + V, d).
        subnet: any one that has them, for its final norm.
        batch: the images.
        parts: what was trained.
        settings: see :class:`ScoringSettings`.
        compute: device and precision.
    """

    def __init__(
        self,
        tokens: Tensor,
        subnet: Subnet,
        batch: Batch,
        parts: TrainedParts,
        settings: ScoringSettings,
        compute: Compute,
    ) -> None:
        self._tokens = tokens
        self._subnet = subnet
        self._batch = batch
        self._parts = parts
        self._settings = settings
        self._compute = compute
        self._agreements: dict[tuple[Measure, int], Tensor] = {}

    def agreement(self, measure: Measure, depth: int) -> Tensor:
        """Agreement of relations with the teacher's at its ``depth``-th compared depth, of each image (B,)."""
        found = self._agreements.get((measure, depth))
        if found is None:
            student = self._projected if measure is Measure.CONSISTENCY else self._tokens
            teacher = self._batch.view.relations[measure][depth]
            settings = self._settings
            found = consistency_score(student, teacher, tau=settings.temperature, standardise=settings.standardise)
            self._agreements[measure, depth] = found
        return found

    @cached_property
    def feature(self) -> Tensor:
        """Minus the distillation loss, summed over the images, float64."""
        distance = target_distance(self._projected, self._target, self._settings.distill)
        return -(distance.double() * len(self._batch))

    @cached_property
    def feature_of_each(self) -> Tensor:
        """Minus the distillation loss of each image (B,)."""
        return -target_distance(self._projected, self._target, self._settings.distill, of_each=True)

    @cached_property
    def reconstruction(self) -> Tensor:
        """Minus the loss at the masked pixels, summed over the images, float64."""
        # Every image hides equally many patches, so a batch's mean is the mean of its images.
        error = hidden_error(self._predicted, self._batch.pixels, self._batch.view.mask.hidden)
        return -error.double() * len(self._batch)

    @cached_property
    def reconstruction_of_each(self) -> Tensor:
        """Minus the loss at the masked pixels of each image (B,)."""
        hidden_BN = self._batch.view.mask.hidden
        error_BN = (self._predicted.float() - self._batch.pixels).square().mean(dim=-1)
        return -(error_BN * hidden_BN).sum(dim=1) / hidden_BN.sum(dim=1)

    @cached_property
    def pooled(self) -> Tensor:
        """Features (B, d): means over the visible patches after the final norm."""
        with self._compute.forward():
            return self._normed[:, 1:].mean(dim=1)

    @cached_property
    def _normed(self) -> Tensor:
        with self._compute.forward():
            return self._subnet.norm("norm", self._tokens)

    @cached_property
    def _predicted(self) -> Tensor:
        assert self._parts.decoder is not None, "checked for the measures that the scorer was made for"
        with self._compute.forward():
            predicted: Tensor = self._parts.decoder(self._normed, self._batch.view.mask.ids_restore)
        return predicted

    @property
    def _target(self) -> Tensor:
        target = self._batch.view.features
        assert target is not None, "kept for the measures that the scorer was made for"
        return target

    @cached_property
    def _projected(self) -> Tensor:
        assert self._parts.projector is not None, "checked for the measures that the scorer was made for"
        with self._compute.forward():
            projected: Tensor = self._parts.projector(self._tokens)
        return projected
