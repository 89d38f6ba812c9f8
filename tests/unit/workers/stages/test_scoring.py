from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from models.distill import FeatureProjector
from models.extract import build_timm, extract_state
from models.masked import random_masking
from models.relations import MIN_VISIBLE_PATCHES, consistency_score, log_relations
from models.supernet import Supernet
from models.teacher import FrozenTeacher
from tests.unit.workers.training.toys import CPU, SPACE, TEACHER, images, teacher
from workers.stages.scoring import ConsistencyScorer, ScoringSettings
from workers.training.streams import torch_stream

M = 20


def settings(**changes: float) -> ScoringSettings:
    values = {"mask_ratio": 0.5, "temperature": 1.0, "batch_size": 8, "seed": 3, **changes}
    return ScoringSettings(**values)  # type: ignore[arg-type]


def supernet() -> Supernet:
    return Supernet(SPACE.largest(), torch.Generator().manual_seed(1))


def projector() -> FeatureProjector:
    return FeatureProjector(SPACE.largest().embed_dim, TEACHER.embed_dim, torch.Generator().manual_seed(2))


def scorer(*, projected: bool = True, **changes: float) -> ConsistencyScorer:
    adapter = projector() if projected else None
    return ConsistencyScorer(supernet(), teacher(), adapter, images(M), settings(**changes), CPU, poll=lambda: None)


@pytest.mark.parametrize("projected", [True, False])
def test_score_is_the_mean_over_images_under_fixed_masks(projected: bool) -> None:
    arch = SPACE.centre()
    ids_keep = random_masking(M, 16, 8, torch_stream(3, "search", "mask")).ids_keep
    [x] = images(M).batches(M)
    student = supernet().tokens(x, arch, ids_keep)
    target = F.layer_norm(teacher().visible_tokens(x, ids_keep), (TEACHER.embed_dim,), eps=1e-6)
    expected = consistency_score(projector()(student) if projected else student, log_relations(target)).mean()
    assert scorer(projected=projected).score(arch) == pytest.approx(expected.item(), abs=1e-6)


def test_scores_do_not_depend_on_what_was_scored_before() -> None:
    a, b = SPACE.smallest(), SPACE.largest()
    one = scorer()
    first = one.score(a)
    one.score(b)
    assert one.score(a) == first
    other = scorer()
    assert other.score(b) == one.score(b)
    assert other.score(a) == first


def test_number_of_classes_does_not_matter() -> None:
    one = scorer()
    assert one.score(SPACE.centre(10)) == one.score(SPACE.centre())


def centring() -> FeatureProjector:
    """Takes the mean off each token, as the target's norm does; scales do not matter to cosines."""
    width = SPACE.largest().embed_dim
    made = FeatureProjector(width, width, torch.Generator())
    with torch.no_grad():
        made.weight.copy_(torch.eye(width) - 1 / width)
    return made


def test_teacher_itself_scores_perfectly() -> None:
    net = supernet()
    twin = build_timm(SPACE.largest())
    twin.load_state_dict(extract_state(net.state_dict(), SPACE.largest(), SPACE.largest()))
    one = ConsistencyScorer(net, FrozenTeacher(twin), centring(), images(M), settings(), CPU, poll=lambda: None)
    best = one.score(SPACE.largest())
    assert best == pytest.approx(0.0, abs=1e-5)
    worse = one.score(SPACE.smallest())
    assert worse is not None
    assert worse < -0.01


def test_network_that_gives_no_numbers_has_no_score() -> None:
    one = scorer()
    with torch.no_grad():
        one._supernet.get_parameter("blocks.0.norm1.weight").fill_(torch.nan)
    assert one.score(SPACE.smallest()) is None


def test_scoring_can_be_stopped_between_batches() -> None:
    class Stop(Exception):
        pass

    calls = []

    def poll() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Stop

    with pytest.raises(Stop):
        scorer().score(SPACE.smallest(), poll)


def test_too_few_visible_patches_are_refused() -> None:
    assert MIN_VISIBLE_PATCHES > 2
    with pytest.raises(ValueError, match="relations need at least"):
        scorer(mask_ratio=0.9)
