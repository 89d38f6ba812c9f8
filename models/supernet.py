"""The weight-sharing supernet: one set of weights, every nested architecture a slice of it.

Legend: B images, C channels, H, W pixels, N patches of an image, V visible (kept) patches, p tokens before those of
the patches (class token, distillation token), T tokens (p + V), d token width, h heads, k width of one head, P values
of one patch, K classes, R residual branches (two a block).

The network is a pre-norm Vision Transformer with exact GELU and a learned position table (a fixed sine-cosine table
must not be sliced: its leading channels hold one image axis only).  Attention is scaled by the *subnet's* head width
unless the cut says otherwise, and with ``rel_pos`` knows the place of each token on the full grid, whichever patches
are visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.architecture import Architecture, Pool
from models.initialisation import initial_state
from models.slicing import LEADING, AxisSlice, Cut, slice_table
from models.templates.model import places, relative_attention


def apply_slices(tensor: Tensor, slices: tuple[AxisSlice, ...]) -> Tensor:
    """Cut one tensor by its row of the slicing table, one :class:`AxisSlice` per axis.

    The result is a view where the layout allows it; gradients reach the kept entries only.
    """
    # Last axis first: rows of a fused projection have to be copied, and then only their kept columns are.
    for axis in reversed(range(tensor.ndim)):
        cut = slices[axis]
        if cut.is_whole:
            continue
        if len(cut.factors) == 1:
            tensor = tensor.narrow(axis, cut.length - cut.kept if cut.trailing else 0, cut.kept)
            continue
        view = torch.unflatten(tensor, axis, cut.factors)
        for k, (factor, length) in enumerate(zip(cut.factors, cut.take, strict=True)):
            view = view.narrow(axis + k, factor - length if cut.trailing else 0, length)
        tensor = view.flatten(axis, axis + len(cut.factors) - 1)
    return tensor


class Supernet(nn.Module):
    """A Vision Transformer that runs as any architecture nested in ``largest``.

    The forward is stateless: the architecture is an argument and nothing of it is kept, so no subnet leaks into the
    next one.  ``state_dict`` has the names and layout of timm's ``VisionTransformer``.

    Args:
        largest: the architecture that all weights are allocated for.
        generator: source of the initial weights; they live on its device.
    """

    def __init__(self, largest: Architecture, generator: torch.Generator) -> None:
        super().__init__()
        self.largest = largest
        for name, value in initial_state(largest, generator).items():
            _register(self, name, value)

    def tokens(
        self,
        x_BCHW: Tensor,
        arch: Architecture,
        ids_keep: Tensor | None = None,
        cut: Cut = LEADING,
        drops: Tensor | None = None,
    ) -> Tensor:
        """Encode images up to, not including, the final norm.

        Args:
            x_BCHW: images.
            arch: the subnet to run as.
            ids_keep: int64 (B, V), the patches to encode, each below N; all of them when None.  Hidden patches are
                never computed, so V of N patches cost about V / N of the time.
            cut: which entries the subnet keeps, and how its attention is scaled.
            drops: (R, B, 1, 1), what the residual branches give is multiplied by, in the order in which they run
                (``workers.training.stochastic_depth``); nothing when None.

        Returns:
            (B, p + V, d): class token, distillation token if there is one, then the patches in the order of
            ``ids_keep``.

        Raises:
            SlicingError: when ``arch`` is not nested in the supernet.
            ValueError: when images, ids or drops have the wrong shape or type.
        """
        return self.features(x_BCHW, arch, ids_keep, cut, drops, after=(arch.depth,))[0]

    def features(
        self,
        x_BCHW: Tensor,
        arch: Architecture,
        ids_keep: Tensor | None = None,
        cut: Cut = LEADING,
        drops: Tensor | None = None,
        *,
        after: Sequence[int],
    ) -> tuple[Tensor, ...]:
        """Tokens after each of some blocks, as :meth:`tokens` gives them after the last.

        Args:
            x_BCHW: images.
            arch: the subnet to run as.
            ids_keep, cut, drops: as for :meth:`tokens`.
            after: numbers of blocks, from 1 to the depth, ascending; blocks beyond the last of them are not run.

        Returns:
            For each number (B, p + V, d).

        Raises:
            SlicingError, ValueError: as for :meth:`tokens`, and when there is no such block.
        """
        check_blocks(after, arch.depth)
        return Subnet(self, arch, cut).features(x_BCHW, ids_keep, after, drops)

    def final_norm(self, t_BTd: Tensor, arch: Architecture, cut: Cut = LEADING) -> Tensor:
        """The final LayerNorm of the subnet; same shape."""
        return Subnet(self, arch, cut).norm("norm", t_BTd)

    def logits(
        self, x_BCHW: Tensor, arch: Architecture, cut: Cut = LEADING, drops: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """What each head of the subnet says: of the class token, and with ``distilled`` of the distillation token.

        Args:
            x_BCHW: images.
            arch: the subnet to run as.
            cut, drops: as for :meth:`tokens`.

        Returns:
            (B, K) for each head; without heads the pooled features (B, d), which with ``distilled`` are those of the
            two tokens.

        Raises:
            SlicingError: when ``arch`` is not nested in the supernet.
            ValueError: when images or drops have the wrong shape.
        """
        net = Subnet(self, arch, cut)
        t_BTd = net.norm("norm", net.features(x_BCHW, None, (arch.depth,), drops)[0])
        pooled_Bd = t_BTd[:, 0] if arch.pool is Pool.TOKEN else t_BTd[:, 1:].mean(dim=1)
        read = {"head": pooled_Bd, **({"head_dist": t_BTd[:, 1]} if arch.distilled else {})}
        return tuple(net.linear(head, t_Bd) if arch.num_classes else t_Bd for head, t_Bd in read.items())

    def forward(self, x_BCHW: Tensor, arch: Architecture, cut: Cut = LEADING) -> Tensor:
        """Logits (B, K) of the subnet, the mean of its heads (DeiT, Touvron et al. 2021, section 4).

        Without a head the pooled features (B, d).

        Raises:
            SlicingError, ValueError: as for :meth:`logits`.
        """
        first, *second = self.logits(x_BCHW, arch, cut)
        return (first + second[0]) / 2 if second else first


class KeptCuts:
    """Weights of several subnets that are cut once and kept, as long as nothing trains them.

    Cutting costs a few calls for each tensor, which in a small network take longer than some of its layers, and a copy
    of the rows of a fused projection.

    Args:
        supernet: whose weights are cut.
        most_bytes: of copies that may be kept; beyond it they are made anew for each use. Views cost nothing.
    """

    def __init__(self, supernet: Supernet, most_bytes: int) -> None:
        self.weights: Mapping[str, Tensor] = dict(supernet.named_parameters())
        self._left = most_bytes
        self._kept: dict[tuple[object, ...], Tensor] = {}

    def cut(self, name: str, slices: tuple[AxisSlice, ...]) -> tuple[Tensor, bool]:
        """A weight cut by its row of the slicing table, and whether it is kept."""
        key = (name, *(axis.take for axis in slices))
        if (kept := self._kept.get(key)) is not None:
            return kept, True
        whole = self.weights[name]
        tensor = apply_slices(whole, slices)
        is_copy = tensor.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
        size = tensor.numel() * tensor.element_size() if is_copy else 0
        if size > self._left:
            return tensor, False
        self._left -= size
        self._kept[key] = tensor
        return tensor, True


class Subnet:
    """One architecture's view of the supernet, a piece at a time; weights are cut when they are used.

    Args:
        supernet: whose weights are used.
        arch: the subnet.
        cut: which entries it keeps, and how its attention is scaled.
        kept: keeps the weights that are cut, which then must not be trained any more; all of its subnets must have the
            same ``cut``. None cuts them anew for each use.

    Raises:
        SlicingError: when ``arch`` is not nested in the supernet.
    """

    def __init__(
        self, supernet: Supernet, arch: Architecture, cut: Cut = LEADING, kept: KeptCuts | None = None
    ) -> None:
        self._arch = arch
        self._table = slice_table(supernet.largest, arch, cut)
        self._query_factor = cut.query_factor(supernet.largest, arch)
        # One walk over the modules: looking up each dotted name costs more than the layers of a small network.
        self._weights = dict(supernet.named_parameters()) if kept is None else kept.weights
        self._kept = kept
        self._own: dict[str, Tensor] = {}  # by name, which is found sooner than by the whole key

    def __getitem__(self, name: str) -> Tensor:
        if self._kept is None:
            return apply_slices(self._weights[name], self._table[name])
        if (own := self._own.get(name)) is not None:
            return own
        tensor, is_kept = self._kept.cut(name, self._table[name])
        if is_kept:
            self._own[name] = tensor
        return tensor

    def features(
        self, x_BCHW: Tensor, ids_keep: Tensor | None, after: Sequence[int], drops: Tensor | None
    ) -> tuple[Tensor, ...]:
        """As :meth:`Supernet.features`."""
        _check_images(x_BCHW, self._arch)
        if drops is not None:
            _check_drops(drops, (2 * self._arch.depth, x_BCHW.shape[0], 1, 1))
        t_BTd = self.embed(patches_of(x_BCHW, self._arch.patch_size, ids_keep), ids_keep)
        at_BT2 = self.places(ids_keep, x_BCHW.device)
        kept: dict[int, Tensor] = {}
        for i in range(after[-1]):
            t_BTd = self.block(i, t_BTd, at_BT2, drops)
            if i + 1 in after:
                kept[i + 1] = t_BTd
        return tuple(kept[number] for number in after)

    def embed(self, patches_BVP: Tensor, ids_keep: Tensor | None) -> Tensor:
        """Tokens (B, p + V, d) before the first block, of patches as :func:`patches_of` gives them."""
        arch = self._arch
        positions_Td = self["pos_embed"][0]
        before = arch.num_prefix
        # Unlike indexing, the gradient of a look-up is summed in a fixed order, so runs repeat bit by bit.
        table_Nd = positions_Td[before:]
        kept_positions = table_Nd if ids_keep is None else F.embedding(ids_keep, table_Nd)
        projection = self["patch_embed.proj.weight"].flatten(1)
        patches_BVd = F.linear(patches_BVP, projection, self["patch_embed.proj.bias"]) + kept_positions
        prefix_1pd = self["cls_token"]
        if arch.distilled:
            prefix_1pd = torch.cat((prefix_1pd, self["dist_token"]), dim=1)
        prefix_Bpd = (prefix_1pd + positions_Td[:before]).expand(patches_BVP.shape[0], -1, -1)
        return torch.cat((prefix_Bpd, patches_BVd), dim=1)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """The linear layer of that name."""
        return F.linear(x, self[f"{name}.weight"], self[f"{name}.bias"])

    def norm(self, name: str, x: Tensor) -> Tensor:
        """The LayerNorm of that name; ``norm`` is the final one."""
        gain, bias = self[f"{name}.weight"], self[f"{name}.bias"]
        return F.layer_norm(x, (self._arch.embed_dim,), gain, bias, self._arch.norm_eps)

    def block(self, i: int, t_BTd: Tensor, at_BT2: Tensor | None, drops: Tensor | None = None) -> Tensor:
        """Tokens after block ``i``, counted from 0; same shape. ``at_BT2`` is of :meth:`places`."""
        name = f"blocks.{i}"
        attended_BTd = self._attention(f"{name}.attn", self.norm(f"{name}.norm1", t_BTd), i, at_BT2)
        t_BTd = t_BTd + self._branch(attended_BTd, 2 * i, f"{name}.ls1", drops)
        hidden_BTf = F.gelu(self.linear(f"{name}.mlp.fc1", self.norm(f"{name}.norm2", t_BTd)))
        return t_BTd + self._branch(self.linear(f"{name}.mlp.fc2", hidden_BTf), 2 * i + 1, f"{name}.ls2", drops)

    def _attention(self, name: str, t_BTd: Tensor, i: int, at_BT2: Tensor | None) -> Tensor:
        qkv = self.linear(f"{name}.qkv", t_BTd)
        heads = (3, self._arch.num_heads[i], self._arch.head_dim)
        q_BhTk, k_BhTk, v_BhTk = torch.unflatten(qkv, -1, heads).permute(2, 0, 3, 1, 4)
        if self._query_factor != 1:
            q_BhTk = q_BhTk * self._query_factor
        if at_BT2 is None:
            mixed_BhTk = F.scaled_dot_product_attention(q_BhTk, k_BhTk, v_BhTk)
        else:
            keys, values = self._tables(name, "k"), self._tables(name, "v")
            mixed_BhTk = relative_attention(q_BhTk, k_BhTk, v_BhTk, keys, values, at_BT2, self._arch.grid_size)
        return self.linear(f"{name}.proj", mixed_BhTk.transpose(1, 2).flatten(2))

    def _branch(self, t_BTd: Tensor, r: int, scale: str, drops: Tensor | None) -> Tensor:
        """What residual branch ``r`` adds, in timm's order: layer scale, then stochastic depth."""
        if self._arch.layer_scale:
            t_BTd = t_BTd * self[f"{scale}.gamma"]
        return t_BTd if drops is None else t_BTd * drops[r].to(t_BTd.dtype)

    def _tables(self, attention: str, role: str) -> Tensor:
        """Vectors of all distances, (2 * 30, k): in rows, then in columns."""
        return torch.cat([self[f"{attention}.rel_pos_{role}_{axis}"] for axis in ("rows", "cols")])

    def places(self, ids_keep: Tensor | None, device: torch.device) -> Tensor | None:
        """Where the tokens are on the grid, for attention that asks it; None for attention that does not."""
        if not self._arch.rel_pos:
            return None
        ids = torch.arange(self._arch.num_patches, device=device).unsqueeze(0) if ids_keep is None else ids_keep
        return places(ids, self._arch.grid_size)


def check_blocks(after: Sequence[int], depth: int) -> None:
    """Refuse numbers of blocks that a network of this depth does not have, or that do not ascend.

    Raises:
        ValueError: with both.
    """
    if not after or list(after) != sorted(set(after)) or not 1 <= after[0] <= after[-1] <= depth:
        raise ValueError(f"tokens after blocks {list(after)}, allowed is 1 to {depth}, ascending")


def _register(root: nn.Module, name: str, value: Tensor) -> None:
    """Put a parameter at a dotted name, with bare modules on the way."""
    *path, leaf = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.register_parameter(leaf, nn.Parameter(value))


def patches_of(x_BCHW: Tensor, size: int, ids_keep: Tensor | None = None) -> Tensor:
    """The values of the patches to encode, (B, V, P), each as channel, row, column.

    Args:
        x_BCHW: images.
        size: side of a patch in pixels.
        ids_keep: int64 (B, V), the patches to encode; all of them when None.

    Raises:
        ValueError: when the ids have the wrong shape or type.
    """
    patches_BNP = _to_patches(x_BCHW, size)
    if ids_keep is None:
        return patches_BNP
    _check_ids(ids_keep, x_BCHW)
    return patches_BNP.gather(1, ids_keep.unsqueeze(-1).expand(-1, -1, patches_BNP.shape[-1]))


def _to_patches(x_BCHW: Tensor, size: int) -> Tensor:
    """(B, N, P): each patch as channel, row, column, the order in which a convolution's weight is stored."""
    return x_BCHW.unfold(2, size, size).unfold(3, size, size).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def _check_images(x: Tensor, arch: Architecture) -> None:
    expected = (arch.in_chans, arch.img_size, arch.img_size)
    if x.ndim != 4 or tuple(x.shape[1:]) != expected:
        raise ValueError(f"images have shape {tuple(x.shape)}, expected (B, {', '.join(map(str, expected))})")


def _check_drops(drops: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(drops.shape) != expected:
        raise ValueError(f"drops have shape {tuple(drops.shape)}, expected (branches, B, 1, 1), {expected}")


def _check_ids(ids_keep: Tensor, x: Tensor) -> None:
    # Their values are left to the kernels: reading them here would stall the device at every step.
    if ids_keep.ndim != 2 or ids_keep.shape[0] != x.shape[0] or ids_keep.dtype != torch.int64:
        found = f"{ids_keep.dtype} {tuple(ids_keep.shape)}"
        raise ValueError(f"ids_keep is {found}, expected torch.int64 ({x.shape[0]}, visible patches)")
