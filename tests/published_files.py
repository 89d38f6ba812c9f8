"""Toy networks laid out as published weight files are, each with the timm network that must give the same features."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from timm.layers import SwiGLUPacked
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from models.masked import sincos_positions

WIDTH, DEPTH, HEADS, PATCH, GRID = 32, 3, 4, 4, 4
SIZE = PATCH * GRID

State = dict[str, Tensor]


@dataclass(frozen=True)
class Published:
    """A file's tensors, and the network that they are.

    ``heads`` is not in the shapes; the others that a test states are what the file must be recognised as.
    """

    state: State
    network: VisionTransformer
    kind: str
    dropped: set[str] = field(default_factory=set)
    heads: int = HEADS


def vit(kind: type[VisionTransformer] = VisionTransformer, **options: object) -> VisionTransformer:
    """timm's network with random weights, norms and scales included."""
    sizes = {
        "img_size": SIZE,
        "patch_size": PATCH,
        "embed_dim": WIDTH,
        "depth": DEPTH,
        "num_heads": HEADS,
        "num_classes": 0,
    }
    torch.manual_seed(3)
    network = kind(**{**sizes, **options})
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return network.eval()


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def state_of(network: nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def plain() -> Published:
    network = vit(num_classes=10)
    return Published(state_of(network), network, "vit", {"head.weight", "head.bias"})


def mae_encoder() -> Published:
    network = vit()
    table = torch.cat((torch.zeros(1, WIDTH), sincos_positions(GRID, WIDTH)))
    with torch.no_grad():
        network.pos_embed.copy_(table.unsqueeze(0))
    return Published(state_of(network), network, "mae_encoder")


def mae_full() -> Published:
    encoder = mae_encoder()
    decoder: State = {
        "mask_token": random(1, 1, 16),
        "decoder_pos_embed": random(1, GRID**2 + 1, 16),
        "decoder_embed.weight": random(16, WIDTH),
        "decoder_embed.bias": random(16),
        "decoder_norm.weight": random(16),
        "decoder_norm.bias": random(16),
        "decoder_pred.weight": random(PATCH**2 * 3, 16),
        "decoder_pred.bias": random(PATCH**2 * 3),
    }
    block = vit(depth=1, embed_dim=16, num_heads=2).blocks[0]
    for i in range(2):
        decoder |= {f"decoder_blocks.{i}.{name}": tensor for name, tensor in state_of(block).items()}
    return Published(encoder.state | decoder, encoder.network, "mae", set(decoder))


def mae_finetuned() -> Published:
    network = vit(global_pool="avg", num_classes=5)
    heads = {"fc_norm.weight", "fc_norm.bias", "head.weight", "head.bias"}
    return Published(state_of(network), network, "mae_finetuned", heads)


def deit_distilled() -> Published:
    network = vit(VisionTransformerDistilled, num_classes=5)
    heads = {f"{head}.{kind}" for head in ("head", "head_dist") for kind in ("weight", "bias")}
    return Published(state_of(network), network, "deit_distilled", heads)


def dinov2(registers: int = 0, *, gated: bool = False) -> Published:
    options: dict[str, object] = {"init_values": 0.1, "reg_tokens": registers, "no_embed_class": registers > 0}
    if gated:
        options |= {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 5.0}
    network = vit(**options)
    state = state_of(network)
    state["mask_token"] = random(1, WIDTH)
    if registers:
        state["register_tokens"] = state.pop("reg_token")
        state["pos_embed"] = torch.cat((random(1, 1, WIDTH), state["pos_embed"]), dim=1)
    if gated:
        names = {"fc1": "w12", "fc2": "w3"}
        state = {re.sub(r"(?<=mlp\.)fc[12]", lambda m: names[m[0]], name): t for name, t in state.items()}
    # timm's own conversion is the reference for what the official names mean.
    network.load_state_dict(checkpoint_filter_fn(dict(state), network))
    return Published(state, network, "dinov2", {"mask_token"})


def dinov2_chunked() -> Published:
    published = dinov2()
    state = {re.sub(r"^blocks\.", "blocks.0.", name): tensor for name, tensor in published.state.items()}
    return Published(state, published.network, "dinov2", {"mask_token"})


_HF = {
    r"(cls_token|mask_token|register_tokens)": r"embeddings.\1",
    r"pos_embed": "embeddings.position_embeddings",
    r"patch_embed\.proj\.(.*)": r"embeddings.patch_embeddings.projection.\1",
    r"norm\.(.*)": r"layernorm.\1",
    r"blocks\.(\d+)\.(norm[12]|mlp\.fc[12])\.(.*)": r"encoder.layer.\1.\2.\3",
    r"blocks\.(\d+)\.mlp\.w12\.(.*)": r"encoder.layer.\1.mlp.weights_in.\2",
    r"blocks\.(\d+)\.mlp\.w3\.(.*)": r"encoder.layer.\1.mlp.weights_out.\2",
    r"blocks\.(\d+)\.attn\.proj\.(.*)": r"encoder.layer.\1.attention.output.dense.\2",
    r"blocks\.(\d+)\.ls([12])\.gamma": r"encoder.layer.\1.layer_scale\2.lambda1",
}


def dinov2_huggingface(registers: int = 0, *, gated: bool = False) -> Published:
    """The names and shapes of ``transformers``' ``Dinov2Model`` and ``Dinov2WithRegistersModel``."""
    official = dinov2(registers, gated=gated)
    state: State = {}
    for name, tensor in official.state.items():
        if match := re.fullmatch(r"blocks\.(\d+)\.attn\.qkv\.(weight|bias)", name):
            for role, rows in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                state[f"encoder.layer.{match[1]}.attention.attention.{role}.{match[2]}"] = rows.clone()
            continue
        [renamed] = [match.expand(new) for old, new in _HF.items() if (match := re.fullmatch(old, name))]
        state[renamed] = tensor
    return Published(state, official.network, "dinov2_huggingface", {"mask_token"})


def clip() -> Published:
    network = vit(pre_norm=True, norm_layer=nn.LayerNorm)
    return Published(state_of(network), network, "vit")


def registers_with_positions() -> Published:
    network = vit(reg_tokens=3)
    return Published(state_of(network), network, "vit")


def no_class_position() -> Published:
    network = vit(no_embed_class=True, init_values=0.1, qkv_bias=False, qk_norm=True)
    return Published(state_of(network), network, "vit")


def deit3() -> Published:
    network = vit(no_embed_class=True, init_values=1e-6)
    state = {re.sub(r"ls([12])\.gamma", r"gamma_\1", name): tensor for name, tensor in state_of(network).items()}
    return Published(state, network, "vit")


PUBLISHED: dict[str, Callable[[], Published]] = {
    "plain": plain,
    "mae-encoder": mae_encoder,
    "mae-full": mae_full,
    "mae-finetuned": mae_finetuned,
    "deit-distilled": deit_distilled,
    "deit3": deit3,
    "dinov2": dinov2,
    "dinov2-registers": lambda: dinov2(4),
    "dinov2-gated": lambda: dinov2(gated=True),
    "dinov2-chunked": dinov2_chunked,
    "dinov2-huggingface": dinov2_huggingface,
    "dinov2-huggingface-registers": lambda: dinov2_huggingface(4),
    "dinov2-huggingface-gated": lambda: dinov2_huggingface(gated=True),
    "registers-with-positions": registers_with_positions,
    "no-class-position": no_class_position,
}
"""Every layout that a file of GELU networks with LayerNorm epsilon 1e-6 is recognised in, by a short name."""
