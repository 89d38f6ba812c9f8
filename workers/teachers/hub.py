"""timm's networks by name: their shape without any weights, and their weights from the hub or its cache on this host.

Where the cache is, whether the hub may be asked and at which address are Hugging Face's own settings: ``HF_HOME``,
``HF_HUB_OFFLINE``, ``HF_ENDPOINT``, ``HF_TOKEN``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import timm
import torch
from huggingface_hub import constants, get_token, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from timm.layers.activations import GELU, GELUTanh, QuickGELU
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from models.foreign.layout import Activation
from models.foreign.recognition import Hints
from service.errors import TeacherInvalid, TeacherUnavailable
from workers.teachers.reading import read_weights

_PROBE_S = 5.0
"""One short question before the hub's client, which asks five times with growing pauses when nobody answers."""

_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class TimmNetwork:
    """One of timm's networks, without weights.

    Attributes:
        name: in full, with the tag of its weights.
        network: on the meta device, without a head.
        config: timm's record of the weights.
    """

    name: str
    network: VisionTransformer
    config: dict[str, Any]

    @property
    def hints(self) -> Hints:
        """What no tensor tells."""
        block: Any = self.network.blocks[0]  # of timm, whose parts have no types
        activation = _activation(self.name, block.mlp.act)
        return Hints(num_heads=block.attn.num_heads, norm_eps=block.norm1.eps, activation=activation)


def find_network(name: str) -> TimmNetwork:
    """Look a name up in timm; takes no network connection.

    Raises:
        TeacherInvalid: no such network, one without published weights, or no plain Vision Transformer.
    """
    try:
        with torch.device("meta"):
            network = timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:  # timm's for names it does not know, torch's for networks that need real numbers
        if timm.is_model(name.partition(".")[0]) and timm.is_model_pretrained(name):
            raise TeacherInvalid(f"{name} is no plain Vision Transformer, as teachers are.") from error
        raise TeacherInvalid(
            f"timm {timm.__version__} has no network or weights {name!r}; timm.list_pretrained('*vit*') lists them."
        ) from error
    if not isinstance(network, VisionTransformer):
        raise TeacherInvalid(f"{name} is a {type(network).__name__}; teachers are timm's VisionTransformer networks.")
    if not isinstance(network.blocks[0], Block):
        kind = type(network.blocks[0]).__name__
        raise TeacherInvalid(f"{name} is made of {kind}; teachers are made of timm's ordinary Block.")
    config: dict[str, Any] = dict(network.pretrained_cfg)  # type: ignore[arg-type]  # an attribute that timm adds
    tag = config.get("tag")
    return TimmNetwork(f"{config['architecture']}.{tag}" if tag else config["architecture"], network, config)


def fetch_weights(found: TimmNetwork) -> dict[str, Tensor]:
    """The weights of one of timm's networks, under its names.

    Raises:
        TeacherUnavailable: they are not in the cache, and the hub cannot be reached or does not give them.
        TeacherInvalid: there are none, or they come in a format that is not read here.
    """
    repository = found.config.get("hf_hub_id")
    if not repository or found.config.get("custom_load"):
        raise TeacherInvalid(
            f"timm has no weights of {found.name} on the hub in a format that is read here; convert them to "
            "safetensors and register the file."
        )
    named = found.config.get("hf_hub_filename")
    path = _locate(found.name, repository, (named,) if named else _FILES)
    state = read_weights(path).tensors
    # timm's own conversion to its names, since some of its repositories hold the files as they were published.
    converted: dict[str, Tensor] = checkpoint_filter_fn(state, found.network, adapt_layer_scale=True)
    return converted


def _locate(name: str, repository: str, files: tuple[str, ...]) -> Path:
    for file in files:
        if isinstance(cached := try_to_load_from_cache(repository, file), str):
            return Path(cached)
    if constants.HF_HUB_OFFLINE:
        raise _unavailable(name, "they are not in this host's cache, and HF_HUB_OFFLINE forbids to ask the hub")
    found = next((file for file in files if _exists(name, repository, file)), None)
    if found is None:
        raise TeacherInvalid(f"The hub's repository {repository} of {name} holds none of {', '.join(files)}.")
    try:
        return Path(hf_hub_download(repository, found))
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError) as error:
        raise _unavailable(name, f"the download from {constants.ENDPOINT} broke off") from error
    except OSError as error:
        raise _unavailable(name, f"the cache {constants.HF_HUB_CACHE} cannot be written") from error


def _exists(name: str, repository: str, file: str) -> bool:
    """Whether the hub has a file; one request, no repetitions."""
    try:
        answer = httpx.head(hf_hub_url(repository, file), timeout=_PROBE_S, headers=_headers())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _unavailable(
            name, f"they are not in this host's cache, and {constants.ENDPOINT} cannot be reached"
        ) from error
    if answer.status_code == httpx.codes.NOT_FOUND:
        return False
    if answer.is_error:
        raise _unavailable(name, f"{constants.ENDPOINT} answers {answer.status_code} {answer.reason_phrase}")
    return True


def _headers() -> dict[str, str]:
    token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _unavailable(name: str, why: str) -> TeacherUnavailable:
    return TeacherUnavailable(
        f"The weights of {name} cannot be had: {why}. Retry the job when the hub can be reached, put the weights into "
        "the cache (HF_HOME) on another machine, or download the file and register it by its path below the import "
        "root (POST /teachers)."
    )


def _activation(name: str, act: nn.Module) -> Activation:
    match act:
        case nn.GELU(approximate="tanh") | GELUTanh():
            return Activation.GELU_TANH
        case nn.GELU() | GELU():
            return Activation.GELU
        case QuickGELU():
            return Activation.QUICK_GELU
        case nn.SiLU():
            return Activation.SWIGLU
        case _:
            kind = type(act).__name__
            raise TeacherInvalid(f"{name} uses the activation {kind}; allowed are GELU, QuickGELU and SwiGLU.")
