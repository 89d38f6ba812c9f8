"""Routes of search spaces, named ones and others."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Self

from fastapi import APIRouter, Body, Path, Query
from fastapi.openapi.models import Example
from pydantic import Field

from search import presets
from search.errors import SpaceError
from search.plugins import PluginError
from search.published import PUBLISHED
from search.space import IMG_SIZES, Space
from service.architectures.schemas import ArchitectureCost
from service.auth import JobReader
from service.errors import ErrorItem, NotFound, ValidationFailed
from service.http import StrictRoute
from service.jobs.resolve import field_errors, make_space
from service.jobs.spec import SpaceSpec
from service.jobs.spec.base import short_form
from service.openapi import problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Page, decode_cursor, encode_cursor
from service.schemas import Answer, Json

router = APIRouter(prefix="/spaces", tags=["architectures"], route_class=StrictRoute)


class Channels(IntEnum):
    """Values of one pixel."""

    GREY = 1
    RGB = 3


NumClasses = Annotated[int, Query(ge=0, le=1_000_000, description="Of the head to price; 0: none.")]


class CostRange(Answer):
    """What the smallest, the middle and the largest member cost."""

    min: ArchitectureCost
    centre: ArchitectureCost
    max: ArchitectureCost

    @classmethod
    def of(cls, space: Space, num_classes: int) -> Self:
        """Price the three members."""
        members = (space.smallest(num_classes), space.centre(num_classes), space.largest(num_classes))
        low, centre, high = (ArchitectureCost.of(member) for member in members)
        return cls(min=low, centre=centre, max=high)


class SpaceSummary(Answer):
    """A named space, priced at its default image size without a head."""

    name: str
    description: str
    size: int = Field(description="Number of architectures.")
    img_size: int
    costs: CostRange


class SpaceList(Page[SpaceSummary]):
    """The named spaces."""


class PublishedArchitecture(Answer):
    """A network that a paper found in the space."""

    name: str
    source: str
    architecture: Json
    cost: ArchitectureCost


class SpaceView(SpaceSummary):
    """A space for one kind of image."""

    in_chans: int
    num_classes: int = Field(description="Of the head that the costs include.")
    space: Json = Field(description="All choices; a search takes this very object as its `space`.")
    architecture_schema: Json = Field(description="JSON schema of the members' architecture JSON.")
    published: list[PublishedArchitecture]


@router.get("", responses=problems())
async def list_spaces(caller: JobReader, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT) -> SpaceList:
    """The named spaces."""
    start = decode_cursor(after, tuple[Annotated[int, Field(ge=0)]])[0] if after is not None else 0
    shown = list(presets.PRESETS.values())[start : start + limit]
    has_more = start + limit < len(presets.PRESETS)
    return SpaceList(
        data=[SpaceSummary(**_summary(preset.description, presets.resolve(preset.name), 0)) for preset in shown],
        has_more=has_more,
        next=encode_cursor(start + limit) if has_more else None,
    )


@router.get("/{name}", responses=problems(NotFound))
async def get_space(
    name: Annotated[str, Path(description="Such as `micro`.")],
    caller: JobReader,
    img_size: Annotated[
        int | None, Query(ge=IMG_SIZES[0], le=IMG_SIZES[1], description="Side in pixels; by default the space's.")
    ] = None,
    in_chans: Annotated[Channels, Query(description="1: grey, 3: RGB.")] = Channels.RGB,
    num_classes: NumClasses = 0,
) -> SpaceView:
    """A space: its choices, its size, what its members cost, and what papers found in it."""
    if name not in presets.preset_names():
        raise NotFound(f"There is no space {name[:100]!r}; the spaces are {', '.join(presets.preset_names())}.")
    try:
        preset = presets.find_preset(name)
    except PluginError as error:
        raise NotFound(str(error)) from error
    try:
        space = presets.resolve(name, img_size=img_size, in_chans=in_chans.value)
    except SpaceError as error:
        items = [
            ErrorItem(p.pointer.removeprefix("/"), "invalid_value", f"found {p.found!r}", p.allowed)
            for p in error.problems
        ]
        raise ValidationFailed(f"Space {name} has no such form: {error}.", errors=items) from error
    return _view(preset.description, space, num_classes, published_in=presets.resolve(preset.name))


_EXAMPLES: dict[str, Example] = {
    "own": {
        "summary": "A space of your own",
        "value": {
            "name": "thin and deep",
            "embed_dim": [96, 128],
            "depth": [8, 10, 12],
            "num_heads": [2, 3, 4],
            "mlp_ratio": [2.0, 3.0],
            "head_dim": 32,
            "img_size": 64,
            "patch_size": 8,
            "rel_pos": True,
        },
    },
    "preset": {"summary": "A named one, changed", "value": {"preset": "micro", "overrides": {"depth": [3, 4]}}},
}


@router.post("/describe", responses=problems(body=True))
async def describe_space(
    space: Annotated[SpaceSpec, short_form("preset", SpaceSpec), Body(openapi_examples=_EXAMPLES)],
    caller: JobReader,
    num_classes: NumClasses = 0,
) -> SpaceView:
    """What a search would take as `space`: its choices, its size and what its members cost. Creates nothing."""
    try:
        made = make_space(space)
    except SpaceError as error:
        raise ValidationFailed.of(field_errors("", error.problems)) from error
    description = "A space of your own." if space.own else _description_of(made.name)
    return _view(description, made, num_classes, published_in=made)


def _description_of(name: str) -> str:
    return presets.find_preset(name).description


def _view(description: str, space: Space, num_classes: int, *, published_in: Space) -> SpaceView:
    return SpaceView(
        **_summary(description, space, num_classes),
        in_chans=space.in_chans,
        num_classes=num_classes,
        space=space.to_json(),
        architecture_schema=space.member_schema(),
        published=[
            PublishedArchitecture(
                name=known.name,
                source=known.source,
                architecture=known.architecture.to_json(),
                cost=ArchitectureCost.of(known.architecture),
            )
            for known in PUBLISHED.values()
            if published_in.contains(known.architecture)
        ],
    )


def _summary(description: str, space: Space, num_classes: int) -> Json:
    return {
        "name": space.name,
        "description": description,
        "size": space.size(),
        "img_size": space.img_size,
        "costs": CostRange.of(space, num_classes),
    }
