"""A teacher of another size looks at the student's patches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from models.architecture import Architecture
from models.foreign.layout import VitLayout
from models.initialisation import initial_state
from models.masked import random_masking
from models.teacher import FrozenTeacher, TeacherError
from models.teacher_view import ImageForm, TeacherView
from tests.published_files import DEPTH, GRID, HEADS, PATCH, SIZE, WIDTH, dinov2, random, state_of, vit
from tests.unit.models.toys import seeded

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OWN = ImageForm(size=SIZE, channels=3, mean=MEAN, std=STD)
ARCH = Architecture(
    embed_dim=WIDTH,
    depth=DEPTH,
    num_heads=(HEADS,) * DEPTH,
    mlp_ratio=(4.0,) * DEPTH,
    head_dim=WIDTH // HEADS,
    img_size=SIZE,
    patch_size=PATCH,
    num_classes=0,
)


def form(size: int, channels: int = 3) -> ImageForm:
    return ImageForm(size=size, channels=channels, mean=(0.4,) * channels, std=(0.3,) * channels)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_file(state_of(vit()), tmp_path / "teacher.safetensors")
    return tmp_path / "teacher.safetensors"


def test_equal_forms_pass_images_bit_for_bit() -> None:
    images = random(2, 3, 8, 8)
    assert TeacherView(form(8), form(8))(images) is images


def test_normalisation_is_the_teachers_own() -> None:
    pixels = torch.rand(2, 3, 8, 8, generator=seeded(1))
    seen = TeacherView(form(8), ImageForm(size=8, channels=3, mean=MEAN, std=STD))((pixels - 0.4) / 0.3)
    expected = (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5)


def test_grey_is_repeated_for_a_teacher_of_three_channels() -> None:
    pixels = torch.rand(2, 1, 8, 8, generator=seeded(1))
    seen = TeacherView(form(8, 1), ImageForm(size=8, channels=3, mean=(0,) * 3, std=(1,) * 3))((pixels - 0.4) / 0.3)
    torch.testing.assert_close(seen, pixels.expand(2, 3, 8, 8), rtol=0, atol=1e-6)


def test_colours_become_luma_for_a_grey_teacher() -> None:
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    seen = TeacherView(form(4), ImageForm(size=4, channels=1, mean=(0,), std=(1,)))((red - 0.4) / 0.3)
    torch.testing.assert_close(seen, torch.full((1, 1, 4, 4), 0.299), rtol=0, atol=1e-6)


def test_resized_images_stay_within_black_and_white() -> None:
    pixels = (torch.rand(1, 1, 8, 8, generator=seeded(1)) > 0.5).float()
    seen = TeacherView(form(8, 1), ImageForm(size=56, channels=1, mean=(0,), std=(1,)))((pixels - 0.4) / 0.3)
    assert (seen.shape, seen.min(), seen.max()) == ((1, 1, 56, 56), 0, 1)


@pytest.mark.parametrize(("size", "grid", "channels"), [(8, 2, 1), (12, 6, 3), (40, 8, 3), (16, 4, 1)], ids=str)
def test_each_patch_of_the_student_is_that_patch_of_the_teacher(
    weights: Path, size: int, grid: int, channels: int
) -> None:
    """One bright patch of the student's image must be the one patch whose embedding in the teacher stands out."""
    student = form(size, channels)
    teacher = FrozenTeacher.for_student(weights, VitLayout(arch=ARCH), OWN, student, grid)
    patch = size // grid
    black = torch.full((1, channels, size, size), -0.4 / 0.3)
    view, embed = teacher.view, teacher.network.patch_embed
    assert view is not None
    dark = embed(view(black))
    for position in range(grid * grid):
        row, column = divmod(position, grid)
        lit = black.clone()
        lit[..., row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = 2.0
        change = (embed(view(lit)) - dark).norm(dim=-1)[0]
        assert int(change.argmax()) == position


def test_positions_and_ids_are_those_of_the_students_grid(tmp_path: Path) -> None:
    """Without blocks' influence and with a table that grows along rows and columns, tokens spell where they are."""
    state = {name: torch.zeros_like(tensor) for name, tensor in initial_state(ARCH, seeded(0)).items()}
    rows, columns = (axis.float() + 0.5 for axis in torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
    state["pos_embed"][0, 1:, 0], state["pos_embed"][0, 1:, 1] = rows.flatten() / 4, columns.flatten() / 4
    save_file(state, tmp_path / "marks.safetensors")
    teacher = FrozenTeacher.for_student(tmp_path / "marks.safetensors", ARCH, OWN, form(16), 8)
    kept = random_masking(3, 64, 10, seeded(2)).ids_keep
    tokens = teacher.visible_tokens(random(3, 3, 16, 16), kept)[:, 1:]
    middle = (kept // 8 >= 1) & (kept // 8 <= 6) & (kept % 8 >= 1) & (kept % 8 <= 6)  # bicubic bends at the border
    found, expected = tokens[..., :2][middle], torch.stack((kept // 8, kept % 8), dim=-1)[middle]
    torch.testing.assert_close(found * 8 - 0.5, expected.float(), rtol=0, atol=0.2)


def test_registers_and_scales_work_on_another_grid(tmp_path: Path) -> None:
    network = dinov2(4).network
    save_file(state_of(network), tmp_path / "teacher.safetensors")
    layout = VitLayout(arch=ARCH, class_position=False, registers=4, layer_scale=True)
    teacher = FrozenTeacher.for_student(tmp_path / "teacher.safetensors", layout, OWN, OWN, GRID)
    seen = teacher.features(images := random(2, 3, SIZE, SIZE), None, after=(DEPTH,))[0]
    with torch.no_grad():
        own = network.forward_intermediates(images, indices=1, output_fmt="NLC", intermediates_only=True)[0]
    torch.testing.assert_close(seen[:, 1:], own, rtol=0, atol=1e-5)
    placed = FrozenTeacher.for_student(tmp_path / "teacher.safetensors", layout, OWN, form(8, 1), 2)
    assert placed.visible_tokens(random(2, 1, 8, 8), torch.tensor([[3], [0]])).shape == (2, 2, WIDTH)


def test_resized_teacher_equals_timm_at_that_size(weights: Path) -> None:
    network = vit()
    network.set_input_size(img_size=24)
    teacher = FrozenTeacher.for_student(weights, ARCH, OWN, ImageForm(size=24, channels=3, mean=MEAN, std=STD), 6)
    images = random(2, 3, 24, 24)
    with torch.no_grad():
        expected = network.forward_intermediates(images, indices=1, output_fmt="NLC", intermediates_only=True)[0]
    torch.testing.assert_close(teacher.features(images, None, after=(DEPTH,))[0][:, 1:], expected, rtol=0, atol=1e-5)


def test_images_of_another_form_than_the_students_are_refused(weights: Path) -> None:
    teacher = FrozenTeacher.for_student(weights, ARCH, OWN, form(8, 1), 4)
    with pytest.raises(ValueError, match=r"expected \(B, 1, 8, 8\)"):
        teacher.features(random(2, 3, SIZE, SIZE), None, after=(1,))


def test_view_that_does_not_fit_the_network_is_refused() -> None:
    with pytest.raises(TeacherError, match="the view gives"):
        FrozenTeacher(vit(), TeacherView(form(8), form(8)))
