from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch

from models.architecture import Architecture
from models.distill import FeatureProjector, distillation_target, feature_loss
from models.extract import build_timm, extract_state
from models.masked import MaskedDecoder, PatchMask, random_masking, reconstruction_loss
from models.relations import MIN_VISIBLE_PATCHES, consistency_score, log_relations
from models.spectrum import effective_rank
from models.supernet import Subnet, Supernet
from models.teacher import FrozenTeacher
from search.measures import Measure
from search.racing import Race
from service.errors import GpuOutOfMemory
from tests.unit.workers.training.toys import CPU, DECODER, SPACE, TEACHER, images, teacher
from workers.stages.scoring import LOOKS, Measures, MeasureScorer, ScoringSettings, TrainedParts
from workers.training.streams import torch_stream

M = 20
BARE = (Measure.CONSISTENCY_BARE,)
EVERY = tuple(Measure)


def settings(**changes: Any) -> ScoringSettings:
    return ScoringSettings(**{"mask_ratio": 0.5, "batch_size": 8, "seed": 3, **changes})


def supernet() -> Supernet:
    return Supernet(SPACE.largest(), torch.Generator().manual_seed(1))


def projector() -> FeatureProjector:
    return FeatureProjector(SPACE.largest().embed_dim, TEACHER.embed_dim, torch.Generator().manual_seed(2))


def decoder() -> MaskedDecoder:
    return MaskedDecoder(SPACE.largest(), DECODER, torch.Generator().manual_seed(4))


def parts() -> TrainedParts:
    return TrainedParts(supernet=supernet(), projector=projector(), decoder=decoder())


def hungry(monkeypatch: pytest.MonkeyPatch, fits: int, error: Exception) -> list[int]:
    """A device that holds so many images in the last block, after it has done others; returns what was asked of it."""
    asked: list[int] = []
    block = Subnet.block

    def limited(self: Subnet, i: int, tokens: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
        if i == 1:
            asked.append(len(tokens))
            if len(tokens) > fits:
                raise error
        return block(self, i, tokens, places)

    monkeypatch.setattr(Subnet, "block", limited)
    return asked


def scorer(measures: Sequence[Measure] = EVERY, *, left: TrainedParts | None = None, **changes: Any) -> MeasureScorer:
    return MeasureScorer(left or parts(), teacher(), images(M), measures, settings(**changes), CPU, poll=lambda: None)


def drawn(*path: str | int) -> PatchMask:
    return random_masking(M, 16, 8, torch_stream(3, "search", "mask", *path))


def by_hand(arch: Architecture, mask: PatchMask, student_block: int, teacher_block: int) -> Measures:
    """All measures from their formulas, in one batch."""
    [x] = images(M).batches(M)
    with torch.no_grad():
        middle, tokens = (
            supernet().features(x, arch, mask.ids_keep, after=(b,))[0] for b in (student_block, arch.depth)
        )
        taught, last = (teacher().features(x, mask.ids_keep, after=(b,))[0] for b in (teacher_block, 2))
        pixels = decoder()(supernet().final_norm(tokens, arch), mask.ids_restore)
        found = {
            "consistency": consistency_score(projector()(middle), log_relations(distillation_target(taught))).mean(),
            "consistency_bare": consistency_score(middle, log_relations(taught)).mean(),
            "reconstruction": -reconstruction_loss(pixels, x, mask.hidden, arch.patch_size),
            "feature": -feature_loss(projector()(tokens), last),
        }
        pooled = supernet().final_norm(tokens, arch)[:, 1:].mean(dim=1)
        shares = torch.linalg.svdvals((pooled - pooled.mean(dim=0)).double()) ** 2
        shares = shares / shares.sum()
        rank = torch.exp(-(shares * shares.log()).sum())
    return {name: value.item() for name, value in {**found, "effective_rank": rank}.items()}


def mean(*several: Measures) -> Measures:
    return {name: sum(one[name] or 0.0 for one in several) / len(several) for name in several[0]}


def test_one_pass_gives_the_means_of_all_measures_over_the_images() -> None:
    arch = SPACE.centre()
    expected = by_hand(arch, drawn(), arch.depth, TEACHER.depth)
    assert scorer().score(arch, EVERY) == pytest.approx(expected, abs=1e-5)


def test_measures_are_means_over_depths_and_masks() -> None:
    arch = SPACE.largest()
    blocks = [(2, 1), (3, 2)]  # after half and after all of 3 blocks here and 2 there
    expected = mean(*(by_hand(arch, drawn(*path), *pair) for path in ((), (1,)) for pair in blocks))
    del expected["effective_rank"]
    averaged = [measure for measure in EVERY if measure is not Measure.EFFECTIVE_RANK]
    found = scorer(depths=(0.5, 1.0), mask_seeds=2).score(arch, averaged)
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_effective_rank_is_that_of_the_features_under_all_masks_together() -> None:
    arch = SPACE.largest()
    [x] = images(M).batches(M)
    with torch.no_grad():
        pooled = torch.cat(
            [
                supernet().final_norm(supernet().tokens(x, arch, drawn(*path).ids_keep), arch)[:, 1:].mean(dim=1)
                for path in ((), (1,))
            ]
        ).double()
    covariance = torch.cov(pooled.T, correction=0)
    found = scorer(mask_seeds=2).score(arch, (Measure.EFFECTIVE_RANK,))
    assert found == {"effective_rank": pytest.approx(effective_rank(covariance), rel=1e-5)}


def test_only_what_is_asked_for_is_measured() -> None:
    everything = scorer().score(SPACE.centre(), EVERY)
    assert scorer().score(SPACE.centre(), BARE) == {"consistency_bare": everything["consistency_bare"]}
    assert scorer(BARE).score(SPACE.centre(), BARE) == {"consistency_bare": everything["consistency_bare"]}
    assert scorer().score(SPACE.centre(), ()) == {}


def test_measures_do_not_depend_on_what_was_measured_before() -> None:
    a, b = SPACE.smallest(), SPACE.largest()
    one = scorer()
    first = one.score(a, EVERY)
    one.score(b, EVERY)
    assert one.score(a, EVERY) == first
    other = scorer()
    assert other.score(b, EVERY) == one.score(b, EVERY)
    assert other.score(a, EVERY) == first


def population() -> list[Architecture]:
    """Every beginning that the space has, in no order."""
    genotypes: list[tuple[float, ...]] = []
    for seed, depth, width in product(range(2), SPACE.depth, SPACE.embed_dim):
        ratios = [SPACE.mlp_ratio[(i + seed) % 2] for i in range(depth)]
        heads = [SPACE.num_heads[(i // 2 + seed) % 2] for i in range(depth)]
        genotypes.append((depth, *ratios, *heads, width))
    return [SPACE.decode(genotype) for genotype in genotypes]


@pytest.mark.parametrize("switch", ["shared_prefixes", "teacher_cache", None])
@pytest.mark.parametrize("how", [{}, {"depths": (0.5, 1.0), "mask_seeds": 2}], ids=["plain", "depths and masks"])
def test_a_population_gets_the_bits_that_each_candidate_gets_alone(how: dict[str, Any], switch: str | None) -> None:
    changes = {**how, **({switch: False} if switch else {})}
    one, archs = scorer(**how), population()
    alone = [one.score(arch, EVERY) for arch in archs]
    assert scorer(**changes).score_all(archs, [EVERY] * len(archs)) == alone


def test_candidates_of_a_population_may_be_asked_for_different_measures() -> None:
    archs, one = population()[:4], scorer()
    wanted = [EVERY, (), BARE, (Measure.FEATURE, Measure.EFFECTIVE_RANK)]
    found = one.score_all(archs, wanted)
    assert found == [one.score(arch, measures) for arch, measures in zip(archs, wanted, strict=True)]
    assert [set(measures) for measures in found] == [{measure.value for measure in measures} for measures in wanted]


def test_shared_beginnings_are_computed_once_for_each_view(monkeypatch: pytest.MonkeyPatch) -> None:
    archs = [SPACE.decode((depth, *[1.0] * depth, *[1] * depth, 16)) for depth in SPACE.depth]
    blocks: list[int] = []
    original = Subnet.block

    def block(self: Subnet, i: int, *rest: Any) -> torch.Tensor:
        blocks.append(i)
        return original(self, i, *rest)

    monkeypatch.setattr(Subnet, "block", block)
    views = -(-M // settings().batch_size)
    scorer().score_all(archs, [BARE] * 3)
    assert blocks == [0, 1, 2] * views
    blocks.clear()
    scorer(shared_prefixes=False).score_all(archs, [BARE] * 3)
    assert blocks == [0, 0, 1, 0, 1, 2] * views


@pytest.mark.parametrize("measure", [m for m in Measure if m is not Measure.EFFECTIVE_RANK], ids=str)
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_a_measure_is_the_mean_of_those_of_each_image(measure: Measure, shuffled: bool) -> None:
    one = scorer(mask_seeds=2, depths=(0.5, 1.0), shuffled=shuffled)
    each = one.of_each_image(SPACE.largest(), measure)
    assert each.shape == (M,)
    assert each.mean() == pytest.approx(
        scorer(mask_seeds=2, depths=(0.5, 1.0)).score(SPACE.largest(), [measure])[measure]
    )
    assert len(set(each)) == M


def test_each_image_has_its_mask_in_whatever_order_images_come() -> None:
    plain, shuffled = (scorer(mask_seeds=2, shuffled=order) for order in (False, True))
    [one, other] = [each.of_each_image(SPACE.largest(), Measure.CONSISTENCY) for each in (plain, shuffled)]
    assert one == pytest.approx(other, abs=1e-5)
    looks = [each.of_each_look(SPACE.largest(), Measure.CONSISTENCY) for each in (plain, shuffled)]
    assert sorted(looks[0]) == pytest.approx(sorted(looks[1]), abs=1e-5)
    assert list(looks[0]) != pytest.approx(list(looks[1]), abs=1e-5)


def test_the_effective_rank_is_of_no_single_image() -> None:
    with pytest.raises(ValueError, match="no mean"):
        scorer().of_each_image(SPACE.largest(), Measure.EFFECTIVE_RANK)


@pytest.mark.parametrize("cached", [True, False])
def test_a_teacher_whose_side_is_kept_is_let_go_of(cached: bool) -> None:
    taught = teacher()
    alive = weakref.ref(taught)
    one = MeasureScorer(parts(), taught, images(M), EVERY, settings(teacher_cache=cached), CPU, poll=lambda: None)
    del taught
    gc.collect()
    assert (alive() is None) == cached
    assert one.score(SPACE.largest(), BARE)


class Verdict(Race):
    """Drops those that are asked for after some looks."""

    def __init__(self, after: int) -> None:
        super().__init__([0.0] * M, error=0.5, tests=1)
        self._after = after

    def is_lost(self, values: Any) -> bool:
        return len(values) == self._after


def test_who_loses_the_race_has_the_means_of_the_images_that_were_seen() -> None:
    archs, one = population(), scorer()
    found = one.score_all(archs, [EVERY] * len(archs), race=(Measure.CONSISTENCY, Verdict(after=16)))
    for arch, measures in zip(archs, found, strict=True):
        assert measures[LOOKS] == 16
        assert measures["consistency"] == pytest.approx(one.of_each_look(arch, Measure.CONSISTENCY)[:16].mean())


def test_a_race_that_nobody_loses_changes_no_bit() -> None:
    archs, one = population(), scorer()
    raced = one.score_all(archs, [EVERY] * len(archs), race=(Measure.CONSISTENCY, Verdict(after=-1)))
    assert raced == one.score_all(archs, [EVERY] * len(archs))


def test_training_between_two_populations_is_seen() -> None:
    trained = parts()
    one = scorer(left=trained)
    before = one.score_all(population(), [BARE] * len(population()))
    with torch.no_grad():
        for weight in trained.supernet.parameters():
            weight.mul_(1.5)
    after = one.score_all(population(), [BARE] * len(population()))
    assert all(a != b for a, b in zip(after, before, strict=True))


def test_number_of_classes_does_not_matter() -> None:
    one = scorer()
    assert one.score(SPACE.centre(10), EVERY) == one.score(SPACE.centre(), EVERY)


def centring() -> FeatureProjector:
    """Takes the mean off each token, as the target's norm does; scales do not matter to cosines."""
    width = SPACE.largest().embed_dim
    made = FeatureProjector(width, width, torch.Generator())
    with torch.no_grad():
        made.weight.copy_(torch.eye(width) - 1 / width)
    return made


@pytest.mark.parametrize("depths", [(1.0,), (0.5, 0.75, 1.0)])
@pytest.mark.parametrize("measure", [Measure.CONSISTENCY, Measure.CONSISTENCY_BARE])
def test_teacher_itself_has_perfect_consistency(measure: Measure, depths: tuple[float, ...]) -> None:
    net = supernet()
    twin = build_timm(SPACE.largest())
    twin.load_state_dict(extract_state(net.state_dict(), SPACE.largest(), SPACE.largest()))
    left = TrainedParts(supernet=net, projector=centring())
    one = MeasureScorer(
        left, FrozenTeacher(twin), images(M), (measure,), settings(depths=depths), CPU, poll=lambda: None
    )
    assert one.score(SPACE.largest(), (measure,))[measure] == pytest.approx(0.0, abs=1e-5)
    worse = one.score(SPACE.smallest(), (measure,))[measure]
    assert worse is not None
    assert worse < -0.01


def test_network_that_gives_no_numbers_has_no_measures() -> None:
    one = scorer()
    with torch.no_grad():
        one.parts.supernet.get_parameter("blocks.0.norm1.weight").fill_(torch.nan)
    assert one.score(SPACE.smallest(), EVERY) == dict.fromkeys((m.value for m in Measure), None)


def test_scoring_can_be_stopped_between_batches() -> None:
    class Stop(Exception):
        pass

    calls = []

    def poll() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Stop

    with pytest.raises(Stop):
        scorer().score(SPACE.smallest(), EVERY, poll)


def test_too_few_visible_patches_are_refused() -> None:
    assert MIN_VISIBLE_PATCHES > 2
    with pytest.raises(ValueError, match="relations need at least"):
        scorer(mask_ratio=0.9)


def test_measures_of_parts_that_were_not_trained_are_refused() -> None:
    bare = TrainedParts(supernet=supernet())
    assert scorer(BARE, left=bare).score(SPACE.centre(), BARE)["consistency_bare"] is not None
    with pytest.raises(ValueError, match="'consistency', 'reconstruction', 'feature'"):
        scorer(left=bare)


@pytest.mark.parametrize("fits", [5, 1])
@pytest.mark.parametrize("cached", [True, False])
def test_images_are_measured_in_parts_when_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch, fits: int, cached: bool
) -> None:
    archs = population()[:3]
    expected = scorer().score_all(archs, [EVERY] * 3)
    sums = scorer().sums(archs, [BARE] * 3, (0, 3))
    looks = scorer().of_each_look(archs[0], Measure.CONSISTENCY)
    asked = hungry(monkeypatch, fits, torch.OutOfMemoryError("CUDA out of memory."))
    told: list[int] = []
    how = settings(teacher_cache=cached)
    one = MeasureScorer(parts(), teacher(), images(M), EVERY, how, CPU, poll=lambda: None, on_split=told.append)
    found = one.score_all(archs, [EVERY] * 3)
    assert told == {5: [4], 1: [4, 2, 1]}[fits]
    assert found == [pytest.approx(measures, rel=1e-5, abs=1e-7) for measures in expected]
    assert [len(rows) for rows in one.sums(archs, [BARE] * 3, (0, 3))] == [3, 3, 3]
    for rows, whole in zip(one.sums(archs, [BARE] * 3, (0, 3)), sums, strict=True):
        assert rows == [pytest.approx(row, rel=1e-5) for row in whole]
    assert one.of_each_look(archs[0], Measure.CONSISTENCY) == pytest.approx(looks, rel=1e-4, abs=1e-7)
    assert [images for images in asked if images > fits] == [8, *told[:-1]]  # the size that fits is remembered


def test_memory_that_does_not_hold_one_image_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    hungry(monkeypatch, 0, torch.OutOfMemoryError("CUDA out of memory."))
    one = MeasureScorer(parts(), teacher(), images(M), BARE, settings(), CPU, lambda: None, on_split=lambda _: None)
    with pytest.raises(GpuOutOfMemory):
        one.score(SPACE.largest(), BARE)


@pytest.mark.parametrize(("error", "may_split"), [(RuntimeError("shapes"), True), (MemoryError(), False)])
def test_other_errors_and_helpers_split_nothing(
    monkeypatch: pytest.MonkeyPatch, error: Exception, may_split: bool
) -> None:
    hungry(monkeypatch, 0, error)
    told: list[int] = []
    on_split = told.append if may_split else None
    one = MeasureScorer(parts(), teacher(), images(M), BARE, settings(), CPU, lambda: None, on_split=on_split)
    with pytest.raises(type(error)):
        one.score(SPACE.largest(), BARE)
    assert told == []


@pytest.mark.parametrize("fits", [8, 3, 1])
def test_the_teachers_side_is_made_in_parts_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch, fits: int) -> None:
    expected = scorer().score(SPACE.centre(), EVERY)
    taught = teacher()
    features = taught.features

    def limited(x: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if len(x) > fits:
            raise MemoryError
        return features(x, *arguments, **options)

    monkeypatch.setattr(taught, "features", limited)
    told: list[int] = []
    one = MeasureScorer(parts(), taught, images(M), EVERY, settings(), CPU, lambda: None, on_split=told.append)
    assert one.score(SPACE.centre(), EVERY) == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert told == {8: [], 3: [4, 2], 1: [4, 2, 1]}[fits]
