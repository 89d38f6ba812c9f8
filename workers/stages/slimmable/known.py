"""A slimmable network that an earlier job trained or imported, as jobs on it find it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from models.export_record import Interpolation, Preprocessing
from models.slimmable import Slimmable
from models.teacher_view import ImageForm, TeacherView
from service.errors import SupernetUnavailable
from workers.protocol import Start
from workers.stages.context import Json
from workers.stages.slimmable.weights import SlicedWeights
from workers.stages.supernet import SUPERNET_FILE
from workers.training.files import TensorFileError


@dataclass(frozen=True, slots=True)
class KnownNetwork:
    """What the supervisor tells of a slimmable network.

    Attributes:
        reference: its public id.
        digest: SHA-256 of its weights.
        net: what it is.
        info: of its row, see ``workers.stages.slimmable.supernet.slimmable_info``.
        path: of its weights on this host.
    """

    reference: str
    digest: str
    net: Slimmable
    info: Json
    path: Path

    @classmethod
    def of(cls, start: Start) -> KnownNetwork:
        """Read the order of a job on a supernet."""
        told = start.supernet
        [path] = [Path(ref.path) for ref in start.inputs if ref.name == SUPERNET_FILE]
        return cls(told["id"], told["digest"], Slimmable.from_json(told["space"]), told["info"], path)

    @property
    def preprocessing(self) -> Preprocessing:
        """How it takes images."""
        return read_preprocessing(self.info["preprocessing"])

    def weights(self) -> SlicedWeights:
        """Its weights.

        Raises:
            SupernetUnavailable: the file on this host is damaged.
        """
        try:
            return SlicedWeights.read(self.net, self.path)
        except TensorFileError as error:
            self.path.unlink(missing_ok=True)  # the next attempt fetches it anew
            raise SupernetUnavailable(
                f"The weights of supernet {self.reference} are damaged on this host; retry the job."
            ) from error

    def width(self, head_dim: int) -> Json:
        """What is known of a width; as of one that nobody has measured when it is not listed."""
        known: list[Json] = [width for width in self.info["widths"] if width["head_dim"] == head_dim]
        return known[0] if known else {"accuracy": None}


def read_preprocessing(document: Json) -> Preprocessing:
    """Read a JSON form of :class:`Preprocessing`."""
    return Preprocessing(
        size=document["size"],
        mean=tuple(document["mean"]),
        std=tuple(document["std"]),
        interpolation=Interpolation(document["interpolation"]),
        crop=document["crop"],
    )


def on_images_of(network: nn.Module, given: Preprocessing, own: Preprocessing) -> nn.Module:
    """The network for images that are normalised as those of another dataset."""
    forms = [ImageForm(size=how.size, channels=len(how.mean), mean=how.mean, std=how.std) for how in (given, own)]
    return nn.Sequential(TeacherView(*forms), network)
