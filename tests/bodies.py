"""Random search bodies from the schema that clients see, so that a new field is drawn without anybody's doing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from search.presets import PresetName
from search.published import PUBLISHED
from service.jobs.spec import SearchSpec, SlimmableSpec, Spec

_LIKELY: Mapping[str, tuple[Any, ...]] = {
    "/method": ("masktas",),
    "/dataset": ("digits", {"id": "digits", "labels": "ignored"}, {"id": "digits", "val_fraction": 0.3}),
    "/constraints": (
        [],
        [{"metric": "params_m", "max": 0.1}],
        [{"metric": "gmacs", "max": 1.5}, {"metric": "params_m", "min": 0.001}],
        [{"metric": "params_m", "max": 6, "min": 5}],
        [{"metric": "peak_mem_mb", "max": 1.2}, {"metric": "weight_mb", "min": 0.01}],
        [{"metric": "latency_ms", "max": 3, "device": "worker", "percentile": 95}],
        [{"metric": "latency_ms", "max": 3, "device": "dev_x"}],
    ),
    "/space/preset": (*PresetName, "nosuch"),
    "/space/img_size": (8, 16, 28, 32, 64, 96, 224, 518, 9),
    "/space/overrides/patch_size": (2, 4, 7, 8, 16),
    "/space/overrides/embed_dim": ([16, 32], [48, 64, 96], [7], [192, 240], [100, 90, 80]),
    "/space/overrides/depth": ([1], [1, 2], [2, 3, 5], [12, 14]),
    "/space/overrides/num_heads": ([1], [1, 2], [2, 3, 4]),
    "/space/overrides/mlp_ratio": ([1.0, 2.0], [0.5], [2, 3.5, 4]),
    "/space/overrides/head_dim": (8, 16, 64),
    "/widths": ({"smallest": 0.5, "step": 0.25}, {"smallest": 0.5, "step": 0.5}, {"smallest": 0.3, "step": 0.1}),
    "/search/architectures": (
        ["autoformer-tiny"],
        ["masktas-tiny", "no-such"],
        [{"embed_dim": 48, "depth": 3, "num_heads": [2, 3, 4], "mlp_ratio": [2, 3, 4]}],
        [{"name": "small", "embed_dim": 16, "depth": 1, "num_heads": [1], "mlp_ratio": [1]}] * 2,
        [{"embed_dim": 16, "depth": 1, "num_heads": [2], "mlp_ratio": [2.0]}],
        [*PUBLISHED],
    ),
    "/teacher": (
        "tch_x",
        {"timm": "vit_base_patch16_224.mae"},
        {"pretrain": {"architecture": {"embed_dim": 32, "depth": 2, "num_heads": 2, "head_dim": 16, "mlp_ratio": 2}}},
        {"pretrain": {"decoder": "mae"}},
        {"pretrain": {"norm_targets": False}},
    ),
    "/warm_start": (None,),
    "/objectives": (
        [{"metric": "score", "goal": "max"}, {"metric": "params_m", "goal": "min"}],
        [{"metric": "score", "goal": "max"}, {"metric": "peak_mem_mb", "goal": "min"}],
        [{"metric": "score", "goal": "max"}, {"metric": "latency_ms", "goal": "min"}],
        [{"metric": "gmacs", "goal": "min"}, {"metric": "params_m", "goal": "min"}, {"metric": "score", "goal": "max"}],
    ),
    "/search/fusion": (["consistency", "feature"], ["consistency_bare", "reconstruction"]),
    "/search/evaluation/depths": ([0.01], [0.25, 0.75, 1], [1.0]),
    "/supernet/decoder": ("mae", {"embed_dim": 16, "depth": 1, "num_heads": 2}),
    "/supernet/mask_ratio": (0.25, 0.5, 0.75, 0.95),
    "/metadata": ({}, {"note": "x"}),
}
"""Values that reach beyond the first check, by pointer; all others are drawn from the schema alone."""

_OWN_SPACES: tuple[Mapping[str, Any], ...] = (
    {"embed_dim": [16, 32], "depth": [1, 2], "num_heads": [1, 2], "mlp_ratio": [1, 2], "img_size": 8, "patch_size": 2},
    {
        "name": "own",
        "embed_dim": [64, 128],
        "depth": [2, 4],
        "num_heads": [2, 4],
        "mlp_ratio": [2.0, 4.0],
        "head_dim": 32,
        "img_size": 32,
        "patch_size": 4,
        "rel_pos": True,
        "pool": "token",
    },
    {"embed_dim": [4], "depth": [1], "num_heads": [1], "mlp_ratio": [2], "img_size": 16, "patch_size": 2},
    {"embed_dim": [8192], "depth": [1, 2], "num_heads": [1], "mlp_ratio": [2], "img_size": 32, "patch_size": 8},
    {"embed_dim": [32], "depth": [65], "num_heads": [1], "mlp_ratio": [2], "img_size": 32, "patch_size": 8},
    {
        "embed_dim": [16, 512],
        "depth": [1],
        "num_heads": [1],
        "mlp_ratio": [2],
        "img_size": 32,
        "patch_size": 8,
        "head_dim": 2,
    },
    {
        "name": "micro",
        "embed_dim": [16, 32],
        "depth": [1],
        "num_heads": [1],
        "mlp_ratio": [1, 2],
        "img_size": 10,
        "patch_size": 2,
        "head_dim": 512,
        "in_chans": 3,
        "norm_eps": 1e-5,
    },
)


_SLIMMABLE: Mapping[str, tuple[Any, ...]] = {
    **{pointer: _LIKELY[pointer] for pointer in ("/dataset", "/constraints", "/objectives", "/metadata")},
    "/method": ("scala", "scala", "usnet", "separate"),
    "/warm_start": (None,),
    "/init": (
        None,
        None,
        "tch_x",
        {"timm": "deit3_small_patch16_224.fb_in1k"},
        {"timm": "vit_small_patch14_dinov2.lvd142m"},
        {"timm": "vit_huge_patch14_clip_224"},
    ),
    "/teacher": (
        None,
        "tch_x",
        {"id": "tch_x", "kind": "features"},
        {"train": {"epochs": 3}},
        {"train": {}, "kind": "logits"},
        {"timm": "vit_base_patch14_dinov2", "kind": "features"},
        {"timm": "deit_small_patch16_224"},
    ),
    "/network/embed_dim": (96, 48, 12, 3, 384, 97, 2),
    "/network/num_heads": (1, 2, 3, 6, 96),
    "/network/mlp_ratio": (4, 2.5, 0.1, 1e-6),
    "/network/depth": (1, 2, 12),
    "/network/img_size": (8, 16, 28, 32, 224, 518, 9),
    "/network/patch_size": (2, 4, 7, 16),
    "/widths/smallest": (0.25, 0.5, 0.75, 0.125, 1 / 3, 1e-300, 1 - 1e-9),
    "/widths/step": (0.25, 0.125, 0.0625, 0.03125, 1 / 3, "every", 1e-300),
    "/training/noise_calibration": (True, False, {"after_epochs": 0}, {"after_epochs": 5}),
    "/training/epochs": (1, 10, 100),
    "/training/full_warm_epochs": (0, 1, 10),
    "/training/early_distillation_after_epochs": (0, 1, 10),
    "/training/batch_size": (1, 64, 65_536),
}
"""The same for slimmable networks."""


class Bodies:
    """Bodies of one kind.

    Args:
        spec: their model.
        likely: values that reach beyond the first check, by pointer.
    """

    def __init__(self, spec: type[Spec], likely: Mapping[str, tuple[Any, ...]]) -> None:
        self.schema: Mapping[str, Any] = spec.model_json_schema()
        self._likely = likely

    def random(self, rng: random.Random) -> dict[str, Any]:
        """A body whose fields are of the right type and mostly within their bounds."""
        body: dict[str, Any] = self._drawn(rng, "", self.schema, keep=rng.choice((0.1, 0.3, 0.6)))
        return body

    def is_place(self, pointer: str, body: Any) -> bool:
        """Whether a JSON pointer names something that is in a body, or that its schema lets be added to it."""
        schemas = [self.schema]
        for token in pointer.split("/")[1:]:
            found: list[Mapping[str, Any]] = []
            for schema in schemas:
                found += self._inside(schema, token)
            if isinstance(body, list) and not (token.isdigit() and int(token) < len(body)):
                return False
            body = body[int(token)] if isinstance(body, list) else body.get(token) if isinstance(body, dict) else None
            schemas = found
        return bool(schemas)

    def _inside(self, schema: Mapping[str, Any], token: str) -> Iterator[Mapping[str, Any]]:
        for form in self._forms(schema):
            if token in form.get("properties", {}):
                yield form["properties"][token]
            elif token.isdigit() and "prefixItems" in form:
                yield from form["prefixItems"][int(token) : int(token) + 1]
            elif token.isdigit() and "items" in form:
                yield form["items"]

    def _forms(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The alternatives of a schema, references followed."""
        if "$ref" in schema:
            yield from self._forms(self.schema["$defs"][schema["$ref"].rsplit("/", 1)[1]])
        elif "anyOf" in schema:
            for form in schema["anyOf"]:
                yield from self._forms(form)
        else:
            yield schema

    def _drawn(self, rng: random.Random, pointer: str, schema: Mapping[str, Any], keep: float) -> Any:
        if pointer in self._likely and rng.random() < 0.97:
            return rng.choice(self._likely[pointer])
        form = rng.choice(
            [form for form in self._forms(schema) if form.get("type") != "null" or rng.random() < 0.2] or [{}]
        )
        if "const" in form or "enum" in form:
            return form["const"] if "const" in form else rng.choice(form["enum"])
        match form.get("type"):
            case "object":
                required = form.get("required", [])
                return {
                    name: self._drawn(rng, f"{pointer}/{name}", part, keep)
                    for name, part in form.get("properties", {}).items()
                    if name in required or rng.random() < keep
                }
            case "array" if "prefixItems" in form:
                return sorted(self._drawn(rng, pointer, part, keep) for part in form["prefixItems"])
            case "array":
                items = [
                    self._drawn(rng, f"{pointer}/-", form["items"], keep)
                    for _ in range(rng.randint(form.get("minItems", 1), min(form.get("maxItems", 3), 3)))
                ]
                return sorted(items) if all(isinstance(item, float) for item in items) else items
            case "boolean":
                return rng.random() < 0.5
            case "integer":
                low, high = form.get("minimum", 0), form.get("maximum", 1000)
                return rng.choice(
                    (low, high, min(high, low + rng.randint(0, 8)), rng.randint(low, min(high, 300 + low)))
                )
            case "number":
                low = form.get("minimum", form.get("exclusiveMinimum", 0) + 1e-9)
                high = form.get("maximum", form.get("exclusiveMaximum", 1e6) - 1e-9)
                return rng.choice((low, high, rng.uniform(low, high), rng.uniform(low, min(high, low + 1.0))))
            case "string":
                return "x" * max(1, form.get("minLength", 1))
            case _:
                return None


SEARCHES = Bodies(SearchSpec, _LIKELY)
SLIMMABLE = Bodies(SlimmableSpec, _SLIMMABLE)


def random_body(rng: random.Random) -> dict[str, Any]:
    """A body whose fields are of the right type and mostly within their bounds; whether it resolves is open."""
    body = SEARCHES.random(rng)
    if rng.random() < 0.4:
        body["space"] = dict(rng.choice(_OWN_SPACES))
    search = body.get("search")
    if isinstance(search, dict) and rng.random() < 0.9:
        search.pop("parents", None)
        search.pop("mutation_share", None)
        listed = search.get("algorithm") == "listed"
        if listed:
            search["architectures"] = rng.choice(_LIKELY["/search/architectures"])
            search["max_evaluations"] = 1000
        else:
            search.pop("architectures", None)
    return body
