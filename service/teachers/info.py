"""What a search needs to know of a registered teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.architecture import Architecture
from service.db.models import Teacher
from service.ids import IdKind, format_id

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherInfo:
    """The facts of one teacher.

    Attributes:
        id: of its row.
        name: what people call it.
        digest: SHA-256 (hex) of its weights.
        architecture: JSON of the network without a head.
        info: how it takes images, its licence, and what it was made of.
    """

    id: UUID
    name: str
    digest: str
    architecture: Json
    info: Json

    @classmethod
    def from_row(cls, row: Teacher) -> TeacherInfo:
        """Read a row."""
        return cls(id=row.id, name=row.name, digest=row.sha256, architecture=row.architecture, info=row.info)

    @property
    def reference(self) -> str:
        """How a search names it."""
        return format_id(IdKind.TEACHER, self.id)

    @property
    def network(self) -> Architecture:
        """The architecture as a record."""
        return Architecture.from_json(self.architecture)

    def to_json(self) -> Json:
        """What a trainer is told of it."""
        return {
            "id": self.reference,
            "name": self.name,
            "digest": self.digest,
            "architecture": self.architecture,
            "info": self.info,
        }
