from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.architecture import Architecture, Pool
from models.classifier import FrozenClassifier
from models.extract import build_timm
from models.slicing import QkvSlicing, slice_table
from models.slimmable import AttentionScale, IsolatedActivation, Slimmable
from models.supernet import apply_slices
from tests.unit.workers.training.toys import CPU, Interrupt, Watcher, images, teacher
from workers.data.dataset import LabelledSet
from workers.training.augment import Augmentation
from workers.training.engine import Losses, TrainingLoop
from workers.training.mixing import Mixing
from workers.training.optimizer import build_adamw
from workers.training.parts import MicroBatches
from workers.training.schedule import BatchOrder, WarmupCosine
from workers.training.slimmable import SlimmableSettings, SlimmableTraining, SubnetTeacher
from workers.training.stochastic_depth import branch_scales
from workers.training.streams import numpy_stream, torch_stream
from workers.training.supervised import LabelledBatch, LabelledBatches
from workers.training.widths import WidthPlan, WidthSampling

LARGEST = Architecture(
    embed_dim=16,
    depth=2,
    num_heads=(2, 2),
    mlp_ratio=(2.0, 2.0),
    head_dim=8,
    img_size=8,
    patch_size=2,
    in_chans=1,
    num_classes=3,
    pool=Pool.TOKEN,
)
NET = Slimmable(largest=LARGEST, head_dims=(2, 4, 6, 8))
DISTILLED = replace(NET, largest=replace(LARGEST, distilled=True))
RELEASED = replace(
    DISTILLED,
    qkv=QkvSlicing.CONTIGUOUS,
    isolated=IsolatedActivation.OFFICIAL,
    attention_scale=AttentionScale.FULL,
)
STEP = 7
SMOOTHING = 0.2


def settings(net: Slimmable = NET, sampling: WidthSampling = WidthSampling.PAPER, **changes: Any) -> SlimmableSettings:
    defaults: dict[str, Any] = {"seed": 3, "stage": ("supernet",), "label_smoothing": SMOOTHING}
    return SlimmableSettings(plan=WidthPlan(net=net, sampling=sampling), **{**defaults, **changes})


def class_teacher() -> FrozenClassifier:
    arch = replace(LARGEST, num_heads=(1, 1), embed_dim=8)
    network = build_timm(arch, torch.Generator().manual_seed(4))
    torch.nn.init.normal_(network.head.weight, generator=torch.Generator().manual_seed(5))
    return FrozenClassifier(network)


def batch(*, mixed: bool = True) -> LabelledBatch:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(6, 1, 8, 8, generator=generator)
    if mixed:
        return LabelledBatch(x, torch.rand(6, 3, generator=generator).softmax(dim=1))
    return LabelledBatch(x, torch.arange(6) % 3)


def objective(made_of: SlimmableSettings, **teachers: Any) -> SlimmableTraining:
    """An objective whose heads say something from the start."""
    made = SlimmableTraining(made_of, CPU, **teachers)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "head" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    return made


def losses_of(made: SlimmableTraining, step: int = STEP, data: LabelledBatch | None = None) -> list[Losses]:
    with torch.no_grad():
        return list(made.losses(data or batch(), step))


def heads_of(made: SlimmableTraining, net: Slimmable, head_dim: int) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return made.supernet.logits(batch().images, net.architecture(head_dim), net.cut(head_dim))


def label_loss(logits: Tensor, shares: Tensor) -> Tensor:
    """Cross-entropy by its formula."""
    target = (1 - SMOOTHING) * shares + SMOOTHING / 3
    return -(target * logits.log_softmax(dim=1)).sum(dim=1).mean()


def decision_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Cross-entropy to the largest of the teacher's logits, by its formula."""
    chosen = torch.eye(3)[teacher_logits.argmax(dim=1)]
    return -(chosen * logits.log_softmax(dim=1)).sum(dim=1).mean()


def kl(larger: Tensor, smaller: Tensor) -> Tensor:
    """Sum over classes of p log(p / q), the mean over images."""
    p, q = larger.softmax(dim=1), smaller.softmax(dim=1)
    return (p * (p / q).log()).sum(dim=1).mean()


def widths_of(made_of: SlimmableSettings, step: int = STEP) -> tuple[int, ...]:
    return made_of.plan.draw(numpy_stream(3, "supernet", "widths", step))


@pytest.mark.parametrize("net", [NET, DISTILLED, RELEASED], ids=["one head", "distilled", "released"])
def test_scala_is_the_sum_of_its_equations(net: Slimmable) -> None:
    made_of = settings(net, kd_weight=0.7)
    made = objective(made_of, teacher=class_teacher())
    outputs = [heads_of(made, net, head_dim) for head_dim in widths_of(made_of)]
    assert len(outputs) == 4
    shares = batch().targets
    expected = [
        0.5 * label_loss(outputs[0][0], shares)
        + 0.5 * decision_loss(outputs[0][-1], class_teacher().logits(batch().images))
    ]
    for larger, smaller in pairwise(outputs):
        expected.append(label_loss(smaller[0], shares) + 0.7 * kl(larger[-1], smaller[-1]))
    found = [losses.total for losses in losses_of(made)]
    torch.testing.assert_close(torch.stack(found), torch.stack(expected))


def test_without_a_teacher_the_whole_network_learns_labels_alone() -> None:
    made = objective(settings())
    torch.testing.assert_close(losses_of(made)[0].total, label_loss(heads_of(made, NET, 8)[0], batch().targets))


def test_without_a_teacher_both_heads_of_the_whole_network_learn_labels() -> None:
    made = objective(settings(DISTILLED))
    first, second = heads_of(made, DISTILLED, 8)
    expected = (label_loss(first, batch().targets) + label_loss(second, batch().targets)) / 2
    torch.testing.assert_close(losses_of(made)[0].total, expected)


def test_certain_classes_are_learnt_as_shares_of_one() -> None:
    made = objective(settings())
    certain = batch(mixed=False)
    whole = losses_of(made, data=certain)[0].total
    torch.testing.assert_close(whole, label_loss(heads_of(made, NET, 8)[0], torch.eye(3)[certain.targets]))


@pytest.mark.parametrize("net", [NET, DISTILLED], ids=["one head", "distilled"])
def test_subnets_of_usnet_learn_from_the_whole_network_alone(net: Slimmable) -> None:
    made_of = settings(net, WidthSampling.USNET, subnet_teacher=SubnetTeacher.FULL, labels_from_step=None)
    made = objective(made_of)
    whole, *subnets = [heads_of(made, net, head_dim) for head_dim in widths_of(made_of)]
    expected = [torch.stack([kl(t, s) for t, s in zip(whole, subnet, strict=True)]).mean() for subnet in subnets]
    torch.testing.assert_close(torch.stack([x.total for x in losses_of(made)[1:]]), torch.stack(expected))


def test_the_teacher_of_usnet_teaches_the_whole_network_only() -> None:
    made_of = settings(sampling=WidthSampling.USNET, subnet_teacher=SubnetTeacher.FULL, labels_from_step=None)
    alone, taught = (losses_of(objective(made_of, **extra)) for extra in ({}, {"teacher": class_teacher()}))
    assert not torch.equal(alone[0].total, taught[0].total)
    assert [x.total for x in alone[1:]] == [x.total for x in taught[1:]]


@pytest.mark.parametrize(
    ("changes", "before", "after"),
    [
        ({"labels_from_step": STEP}, {"subnet_distillation"}, {"subnet_labels", "subnet_distillation"}),
        ({"distill_from_step": STEP}, {"subnet_labels"}, {"subnet_labels", "subnet_distillation"}),
        ({"subnet_teacher": SubnetTeacher.NONE}, {"subnet_labels"}, {"subnet_labels"}),
        ({"labels_from_step": None}, {"subnet_distillation"}, {"subnet_distillation"}),
    ],
)
def test_subnets_learn_what_the_step_says(changes: dict[str, Any], before: set[str], after: set[str]) -> None:
    made = objective(settings(**changes))
    for step, expected in ((STEP - 1, before), (STEP, after)):
        assert [set(losses.parts) for losses in losses_of(made, step)[1:]] == [expected] * 3


@pytest.mark.parametrize(
    "changes", [{"full_only_steps": STEP}, {"labels_from_step": None, "distill_from_step": STEP}], ids=["phase", "idle"]
)
def test_at_first_the_whole_network_is_trained_alone(changes: dict[str, Any]) -> None:
    made = objective(settings(**changes))
    assert [len(losses_of(made, step)) for step in (STEP - 1, STEP)] == [1, 4]


@pytest.mark.parametrize("labels", [True, False], ids=["logits", "tokens"])
def test_no_gradient_reaches_the_larger_network_that_teaches(labels: bool) -> None:
    net = NET if labels else replace(NET, largest=LARGEST.with_classes(0))
    made_of = settings(net, cross_entropy=labels, labels_from_step=None)
    made = objective(made_of, **({} if labels else {"feature_teacher": teacher()}))
    list(made.losses(batch(), STEP))[1].total.backward()  # type: ignore[no-untyped-call]
    touched = made.supernet.get_parameter("norm.weight").grad
    assert touched is not None
    assert touched.nonzero().flatten().tolist() == list(range(net.embed_dim(widths_of(made_of)[1])))


@pytest.mark.parametrize("net", [NET, replace(NET, isolated=IsolatedActivation.PAPER), RELEASED])
def test_a_subnet_gets_gradients_inside_its_slice_only(net: Slimmable) -> None:
    made_of = settings(net)
    for position, head_dim in enumerate(widths_of(made_of)):
        made = objective(made_of)
        list(made.losses(batch(), STEP))[position].total.backward()  # type: ignore[no-untyped-call]
        table = slice_table(net.largest, net.architecture(head_dim), net.cut(head_dim))
        for name, parameter in made.supernet.named_parameters():
            assert parameter.grad is not None
            inside = torch.zeros_like(parameter, requires_grad=True)
            apply_slices(inside, table[name]).sum().backward()  # type: ignore[no-untyped-call]
            assert inside.grad is not None
            assert not (parameter.grad * (1 - inside.grad)).any(), f"{name} of {head_dim}"


def test_branches_are_skipped_by_draws_of_the_step_and_of_each_network() -> None:
    made_of = settings(drop_path=0.5)
    made = objective(made_of)
    head_dim = widths_of(made_of)[0]
    drops = branch_scales(0.5, 2, 6, torch_stream(3, "supernet", "depth", STEP, 0))
    with torch.no_grad():
        [logits] = made.supernet.logits(batch().images, NET.architecture(head_dim), NET.cut(head_dim), drops)
    torch.testing.assert_close(losses_of(made)[0].total, label_loss(logits, batch().targets))
    assert not torch.equal(losses_of(made)[1].total, losses_of(objective(settings()))[1].total)


@pytest.mark.parametrize("isolated", [IsolatedActivation.OFF, IsolatedActivation.OFFICIAL])
@pytest.mark.parametrize("taught_by", [SubnetTeacher.NEXT_LARGER, SubnetTeacher.FULL])
@torch.no_grad()
def test_without_labels_each_network_matches_tokens_through_its_columns_of_the_projector(
    isolated: IsolatedActivation, taught_by: SubnetTeacher
) -> None:
    net = replace(NET, largest=LARGEST.with_classes(0), isolated=isolated)
    made_of = settings(net, cross_entropy=False, labels_from_step=None, kd_weight=0.3, subnet_teacher=taught_by)
    made = objective(made_of, feature_teacher=teacher())
    assert made.projector is not None
    x = batch().images
    target = teacher().network.forward_features(x)
    expected = []
    for head_dim in widths_of(made_of):
        arch, cut = net.architecture(head_dim), net.cut(head_dim)
        tokens = made.supernet.final_norm(made.supernet.tokens(x, arch, cut=cut), arch, cut)
        columns = slice(16 - arch.embed_dim, 16) if cut.trailing else slice(arch.embed_dim)
        projected = tokens @ made.projector.weight[:, columns].T + made.projector.bias
        error = (projected - target) ** 2
        expected.append((error[:, 0].mean() + error[:, 1:].mean()) * (0.3 if expected else 1))
        if len(expected) == 1 or taught_by is SubnetTeacher.NEXT_LARGER:
            target = projected
    torch.testing.assert_close(torch.stack([x.total for x in losses_of(made)]), torch.stack(expected))


def test_labels_are_not_read_without_cross_entropy() -> None:
    net = replace(NET, largest=LARGEST.with_classes(0))
    made = objective(settings(net, cross_entropy=False, labels_from_step=None), feature_teacher=teacher())
    found = [
        losses_of(made, data=LabelledBatch(batch().images, targets)) for targets in (batch().targets, torch.empty(0))
    ]
    assert [x.total for x in found[0]] == [x.total for x in found[1]]


def loop(total_steps: int = 12) -> TrainingLoop[LabelledBatch]:
    made_of = settings(drop_path=0.2, full_only_steps=2, distill_from_step=3)
    made = SlimmableTraining(made_of, CPU, teacher=class_teacher())
    data = LabelledSet(images(), np.arange(40) % 3, 3)
    order = BatchOrder(len(data), 8, 3, ("supernet",))
    return TrainingLoop(
        objective=made,
        batches=LabelledBatches(data, order, Augmentation(max_shift=0.1), Mixing(mixup=0.8), CPU),
        optimizer=build_adamw(made.named_parameters(), weight_decay=0.05),
        schedule=WarmupCosine.of_share(3e-3, 0.1, total_steps),
        compute=CPU,
        clip_grad=1.0,
        metrics_every=4,
    )


@pytest.mark.parametrize("stop_at", [1, 5, 9])
def test_a_training_that_was_stopped_goes_on_as_if_undisturbed(stop_at: int, tmp_path: Path) -> None:
    whole, parts = Watcher(), Watcher(stop_at=stop_at)
    undisturbed = loop()
    undisturbed.run(whole)
    undisturbed.save(tmp_path / "undisturbed")
    first = loop()
    with pytest.raises(Interrupt):
        first.run(parts)
    first.save(tmp_path / "state")
    second = loop()
    second.restore(tmp_path / "state")
    parts.stop_at = None
    second.run(parts)
    second.save(tmp_path / "resumed")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "undisturbed").read_bytes()
    assert parts.rows == whole.rows


@pytest.mark.parametrize(
    ("changes", "teachers", "message"),
    [
        ({"label_smoothing": 1.0}, {}, "label_smoothing 1.0, allowed is 0 to below 1"),
        ({"full_only_steps": -1}, {}, "full_only_steps -1, allowed is 0 or more"),
        ({"labels_from_step": None, "subnet_teacher": SubnetTeacher.NONE}, {}, "there is nothing to learn"),
        ({"cross_entropy": False}, {}, "labels_from_step needs cross_entropy"),
        ({"cross_entropy": False, "labels_from_step": None}, {}, "a teacher of tokens; there is none"),
        ({"cross_entropy": False, "labels_from_step": None}, {"teacher": class_teacher()}, "there is one of classes"),
        ({}, {"feature_teacher": teacher()}, "replaces all labels"),
        ({"net": replace(NET, largest=LARGEST.with_classes(0))}, {}, "no head to learn labels with"),
        (
            {"net": DISTILLED, "cross_entropy": False, "labels_from_step": None},
            {"feature_teacher": teacher()},
            "distilled must be off",
        ),
    ],
)
def test_what_cannot_be_learnt_is_refused(changes: dict[str, Any], teachers: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SlimmableTraining(settings(**changes), CPU, **teachers)


@pytest.mark.parametrize("tokens", [False, True])
def test_a_step_in_parts_takes_the_same_gradient(tokens: bool) -> None:
    made = (
        objective(settings(cross_entropy=False, labels_from_step=None, drop_path=0.3), feature_teacher=teacher())
        if tokens
        else objective(settings(drop_path=0.3), teacher=class_teacher())
    )
    found: list[dict[str, Tensor]] = []
    for micro in (MicroBatches(6, 6), MicroBatches(6, 4)):
        for _, parameter in made.named_parameters():
            parameter.grad = None
        for part, share in micro.parts():
            for losses in made.losses(batch(), STEP, part):
                (losses.total * share).backward()  # type: ignore[no-untyped-call]
        found.append({name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=2e-4, atol=1e-6)
