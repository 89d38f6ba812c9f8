"""What is wrong with something that a user wrote, field by field."""

from __future__ import annotations

from collections.abc import Iterable

from models.architecture import FieldProblem


class SpecError(ValueError):
    """A record that a user wrote cannot be used. ``problems`` lists every field at fault."""

    def __init__(self, problems: Iterable[FieldProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


class SpaceError(SpecError):
    """The lists do not make a search space, or a genotype is not in it."""


class ConstraintError(SpecError):
    """A limit that cannot be read: unknown metric, no side given, sides crossed, numbers that are none."""


class SettingsError(SpecError):
    """Settings of a search algorithm contradict each other or lie outside what is allowed."""
