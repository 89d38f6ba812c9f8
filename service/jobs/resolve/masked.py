"""Masked pretraining: the mask, the decoder and the recipe."""

from __future__ import annotations

from typing import Any, TypeVar

from models.architecture import Architecture, count_visible
from search.presets import MICRO_MAX_IMG_SIZE
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.recipes import MASKED, SMALL_MASKED, fill_optim, is_small
from service.jobs.spec import DecoderSpec, MaskedSpec

_Masked = TypeVar("_Masked", bound=MaskedSpec)

MIN_VISIBLE = 4
"""With fewer visible patches a row of the relation matrix has too few entries to tell students apart."""

POSITION_PARTS = 4
"""The decoder's fixed positions are a sine and a cosine for each of two axes."""

GOOD_VISIBLE = 8
"""The default mask ratio leaves at least this many visible patches, if the grid has twice as many."""


MAE_CROP_SCALE = (0.2, 1.0)
"""He et al. 2022, appendix A.1."""

WHOLE_IMAGE = (1.0, 1.0)


def resolve_masked(
    asked: _Masked, largest: Architecture, train_images: int, pointer: str, warnings: list[ErrorItem]
) -> _Masked:
    """Fill mask, decoder, crops and recipe.

    Raises:
        ValidationFailed: the mask leaves too little, or the decoder has an impossible size.
    """
    ratio = asked.mask_ratio
    if ratio is None:
        ratio = 0.75 if count_visible(largest.num_patches, 0.75) >= GOOD_VISIBLE else 0.5
    check_mask(ratio, largest.num_patches, f"{pointer}/mask_ratio")
    small = is_small(largest)
    decoder = _resolve_decoder(asked.decoder, small, f"{pointer}/decoder")
    filled = asked.model_copy(update={"mask_ratio": ratio, "decoder": decoder, **_resolve_crops(asked, largest, small)})
    return fill_optim(filled, SMALL_MASKED if small else MASKED, train_images, pointer, warnings)


def _resolve_crops(asked: MaskedSpec, largest: Architecture, small: bool) -> dict[str, Any]:
    """MAE's crops and mirroring for photographs; none for small images.

    A crop of an image of a few pixels has next to nothing to enlarge, and mirroring is wrong for digits and text, which
    such images often show.
    """
    published = not small and largest.img_size > MICRO_MAX_IMG_SIZE
    scale, flip = asked.crop_scale, asked.horizontal_flip
    return {
        "crop_scale": scale if scale is not None else (MAE_CROP_SCALE if published else WHOLE_IMAGE),
        "horizontal_flip": flip if flip is not None else published,
    }


def check_mask(ratio: float, patches: int, pointer: str) -> None:
    """Refuse ratios that leave too little to see, for the relations, or nothing to reconstruct.

    Raises:
        ValidationFailed: naming the field ``pointer``.
    """
    visible = count_visible(patches, ratio)
    if visible < MIN_VISIBLE:
        raise ValidationFailed(
            f"mask_ratio {ratio:g} leaves {visible} of {patches} patches visible.",
            errors=[
                ErrorItem(
                    pointer,
                    "too_few_visible_patches",
                    f"at least {MIN_VISIBLE} patches must stay visible",
                    {"max": max(0.0, 1 - MIN_VISIBLE / patches)},
                )
            ],
        )
    if visible == patches:
        raise ValidationFailed(
            f"mask_ratio {ratio:g} hides none of {patches} patches.",
            errors=[ErrorItem(pointer, "nothing_masked", "at least one patch must be hidden", {"min": 1 / patches})],
        )


def _resolve_decoder(asked: DecoderSpec | None, small: bool, pointer: str) -> DecoderSpec:
    decoder = asked or DecoderSpec(embed_dim=64 if small else 256, depth=1 if small else 2, num_heads=4 if small else 8)
    width, heads = decoder.embed_dim, decoder.num_heads
    if width % POSITION_PARTS:
        allowed = f"a multiple of {POSITION_PARTS}"
        raise ValidationFailed(
            f"The decoder's embed_dim {width} is not {allowed}.",
            errors=[
                ErrorItem(
                    f"{pointer}/embed_dim",
                    "not_a_multiple",
                    f"found {width}; positions are sines and cosines along two axes",
                    allowed,
                )
            ],
        )
    if width % heads:
        raise ValidationFailed(
            f"The decoder's embed_dim {width} is not a multiple of its {heads} heads.",
            errors=[
                ErrorItem(
                    f"{pointer}/num_heads", "not_a_divisor", f"{heads} does not divide {width}", f"a divisor of {width}"
                )
            ],
        )
    return decoder
