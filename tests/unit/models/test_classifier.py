from __future__ import annotations

from dataclasses import replace

import torch

from models.architecture import Architecture, Pool
from models.classifier import FrozenClassifier
from models.extract import build_timm
from models.teacher import FrozenTeacher
from models.teacher_view import ImageForm, TeacherView
from tests.unit.models.toys import randomise, seeded

ARCH = Architecture(
    embed_dim=16, depth=2, num_heads=(2, 2), mlp_ratio=(2.0, 2.0), head_dim=8, img_size=12, patch_size=3, num_classes=5
)


def classifier(view: TeacherView | None = None) -> FrozenClassifier:
    network = build_timm(replace(ARCH, distilled=True, pool=Pool.TOKEN), seeded(0))
    randomise(network.state_dict(), seeded(1))
    return FrozenClassifier(network, view)


def images(size: int = 12) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=seeded(2))


def test_logits_are_those_of_the_network_and_carry_no_gradient() -> None:
    frozen = classifier()
    logits = frozen.logits(images().requires_grad_())
    assert not logits.requires_grad
    assert torch.equal(logits, frozen.network(images()).detach())


def test_the_network_stays_frozen_and_in_eval_mode() -> None:
    frozen = classifier()
    torch.nn.ModuleList([frozen]).train()
    assert not any(module.training for module in frozen.network.modules())
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_images_of_another_form_pass_through_the_view() -> None:
    form = ImageForm(size=12, channels=3, mean=(0.5,) * 3, std=(0.25,) * 3)
    view = TeacherView(replace(form, size=8, mean=(0.0,) * 3, std=(1.0,) * 3), form)
    torch.testing.assert_close(classifier(view).logits(images(8)), classifier().logits(view(images(8))))


def test_a_teacher_with_a_head_becomes_a_classifier_of_the_same_view() -> None:
    form = ImageForm(size=12, channels=3, mean=(0.5,) * 3, std=(0.25,) * 3)
    view = TeacherView(replace(form, size=8), form)
    network = build_timm(ARCH, seeded(0))
    frozen = FrozenClassifier.of(FrozenTeacher(network, view))
    assert frozen.logits(images(8)).shape == (2, 5)
    assert frozen.view is view
