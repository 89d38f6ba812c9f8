"""The frozen teacher: any timm ``VisionTransformer`` that saw more than the student did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from models.architecture import Architecture, Pool
from models.extract import StateError
from models.foreign.layout import VitLayout
from models.supernet import check_blocks
from models.teacher_view import ImageForm, TeacherView
from models.teacher_weights import build_vit, on_grid


class TeacherError(ValueError):
    """The network cannot serve as a teacher; the message says what it lacks."""


class FrozenTeacher(nn.Module):
    """Answers with the features of a frozen network at the visible patches of an image.

    The network stays in eval mode and gets no gradient, whatever is called on the module around it.

    Patch ids are always the student's: a teacher for other sizes or patches gets the images resized so that its patches
    lie on the student's grid, see :meth:`for_student`.

    Args:
        network: a timm ``VisionTransformer`` with class token and learned positions; register tokens are welcome.
        view: turns the images that :meth:`features` gets into those that the network takes; None: they are the same.

    Raises:
        TeacherError: when the network lacks a class token or a position table, or takes other images than the view
            gives.
    """

    def __init__(self, network: VisionTransformer, view: TeacherView | None = None) -> None:
        super().__init__()
        if network.cls_token is None or network.pos_embed is None:
            lacking = "class token" if network.cls_token is None else "position table"
            raise TeacherError(f"the teacher has no {lacking}, allowed are Vision Transformers with both")
        taken = (network.in_chans, *network.patch_embed.img_size)
        if view is not None and taken != (view.teacher.channels, view.teacher.size, view.teacher.size):
            raise TeacherError(f"the teacher takes images {taken}, the view gives {view.teacher}")
        self.network = network.requires_grad_(False).eval()
        self.view = view

    @classmethod
    def load(cls, path: Path, layout: VitLayout | Architecture) -> Self:
        """Read a teacher of known layout from a safetensors file under timm's names.

        Raises:
            FileNotFoundError: when there is no such file.
            StateError: when its tensors are not exactly those of the layout.
        """
        found, state, _ = _read(path, layout)
        return cls(build_vit(found, state))

    @classmethod
    def for_student(
        cls,
        path: Path,
        layout: VitLayout | Architecture,
        own: ImageForm,
        student: ImageForm,
        grid: int,
        *,
        headed: bool = False,
    ) -> Self:
        """Read a teacher that looks at a student's images patch by patch as the student does.

        Its positions are resampled to the student's grid; images are resized to that grid times its own patch.

        Args:
            path: weights under timm's names.
            layout: of these weights.
            own: what the teacher was trained on.
            student: form of the images that :meth:`features` will get.
            grid: patches along one side of the student's images.
            headed: keep the head, so that the network gives logits (``models.classifier``).

        Raises:
            FileNotFoundError: when there is no such file.
            StateError: when its tensors are not exactly those of the layout, or it lacks a head that is to be kept.
        """
        found, body, head = _read(path, layout)
        placed, state = on_grid(found, body, grid)
        form = ImageForm(size=placed.arch.img_size, channels=placed.arch.in_chans, mean=own.mean, std=own.std)
        network = build_vit(placed, state)
        if headed:
            _give_head(network, found.arch.pool, head)
        return cls(network, TeacherView(student, form))

    @property
    def embed_dim(self) -> int:
        """Width of the features."""
        return self.network.embed_dim

    def train(self, mode: bool = True) -> Self:
        """Does nothing: dropout and stochastic depth of the teacher stay off."""
        return self

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.network.blocks)

    def visible_tokens(self, x_BCHW: Tensor, ids_keep: Tensor) -> Tensor:
        """Output of the last block, before the final norm, when only some patches are seen; see :meth:`features`."""
        return self.features(x_BCHW, ids_keep, after=(self.depth,))[0]

    @torch.no_grad()
    def features(self, x_BCHW: Tensor, ids_keep: Tensor | None, *, after: Sequence[int]) -> tuple[Tensor, ...]:
        """Tokens after each of some blocks, when only some patches are seen.

        Args:
            x_BCHW: images of the size that the teacher was built for, or of the student's form when it has a view.
            ids_keep: int64 (B, V), the visible patches; None shows all of them, in image order.
            after: numbers of blocks, from 1 to the depth, ascending; blocks beyond the last of them are not run.

        Returns:
            For each number (B, 1 + V, D), class token first, then the patches in the order of ``ids_keep``; register
            tokens take part in the attention but are not returned.

        Raises:
            ValueError: when the images or ids have the wrong shape, or there is no such block.
        """
        check_blocks(after, self.depth)
        net = self.network
        form = self.view.student if self.view else None
        expected = (form.channels, form.size, form.size) if form else (net.in_chans, *net.patch_embed.img_size)
        ids_fit = ids_keep is None or ids_keep.shape[:-1] == x_BCHW.shape[:1]
        if x_BCHW.ndim != 4 or tuple(x_BCHW.shape[1:]) != expected or not ids_fit:
            found = f"{tuple(x_BCHW.shape)}, ids_keep {None if ids_keep is None else tuple(ids_keep.shape)}"
            raise ValueError(f"images have shape {found}, expected (B, {', '.join(map(str, expected))}), (B, visible)")
        t_BTD = net._pos_embed(net.patch_embed(self.view(x_BCHW) if self.view else x_BCHW))
        prefix = net.num_prefix_tokens
        patches_BVD = t_BTD[:, prefix:]
        if ids_keep is not None:
            # Positions are given before patches are dropped, so each kept patch has its own.
            patches_BVD = patches_BVD.gather(1, ids_keep.unsqueeze(-1).expand(-1, -1, t_BTD.shape[-1]))
        t_BTD = net.norm_pre(torch.cat((t_BTD[:, :prefix], patches_BVD), dim=1))
        kept: dict[int, Tensor] = {}
        for i in range(after[-1]):
            t_BTD = net.blocks[i](t_BTD)
            if i + 1 in after:
                kept[i + 1] = t_BTD
        return tuple(torch.cat((kept[n][:, :1], kept[n][:, prefix:]), dim=1) for n in after)


_HEAD = "head."


def _read(path: Path, layout: VitLayout | Architecture) -> tuple[VitLayout, dict[str, Tensor], dict[str, Tensor]]:
    """Layout and weights without the head, and the head, which a supervised teacher has."""
    found = layout if isinstance(layout, VitLayout) else VitLayout(arch=layout)
    tensors = load_file(path)
    if not found.arch.num_classes:
        return found, tensors, {}
    head = {name.removeprefix(_HEAD): tensor for name, tensor in tensors.items() if name.startswith(_HEAD)}
    body = {name: tensor for name, tensor in tensors.items() if not name.startswith(_HEAD)}
    return replace(found, arch=found.arch.with_classes(0)), body, head


def _give_head(network: VisionTransformer, pool: Pool, head: Mapping[str, Tensor]) -> None:
    if set(head) != {"weight", "bias"}:
        raise StateError(f"a head has weight and bias, found {sorted(head) or 'none'}")
    classes, width = head["weight"].shape
    linear = nn.Linear(width, classes, device="meta")
    linear.load_state_dict(dict(head), assign=True)
    network.head, network.global_pool = linear, pool.value
