from __future__ import annotations

from typing import Any

import pytest

from service.datasets.builtin import BUILTINS
from service.forecast.calibration import CALIBRATION_KEY, Calibration, fit_speeds
from service.forecast.estimate import estimate
from service.forecast.footprint import Footprint, TrainingSize, activations
from service.forecast.jobs import forecast_search, forecast_widths
from service.forecast.quantity import Work
from service.jobs.resolve import resolve_search, resolve_slimmable
from service.jobs.spec import DatasetRef, SearchSpec, SlimmableSpec

SPEEDS = Calibration(
    device="cpu",
    threads=1,
    macs_per_s=1e10,
    pass_s=1e-3,
    update_s=1e-9,
    start_s=5.0,
    base_mb=700.0,
    error=0.1,
)


def search_work_of(**changes: Any) -> dict[str, Work]:
    spec = SearchSpec.model_validate({"method": "masktas", "dataset": "digits", **changes})
    return forecast_search(resolve_search(spec, DIGITS), DIGITS, None, None)[0]


DIGITS = BUILTINS["digits"]


def test_speeds_are_read_off_two_steps() -> None:
    truth = SPEEDS.model_copy(update={"update_s": 0.0})
    steps = [Work(macs=1e7, passes=12), Work(macs=1e10, passes=12)]
    found = fit_speeds(*((step, truth.seconds(step)) for step in steps))
    assert found == pytest.approx((truth.macs_per_s, truth.pass_s))


def test_noise_gives_no_negative_speed() -> None:
    few, many = Work(macs=1e9, passes=12), Work(macs=1e10, passes=12)
    macs_per_s, pass_s = fit_speeds((few, 0.01), (many, 1.0))
    assert pass_s == 0
    assert macs_per_s == pytest.approx(1e10)


@pytest.mark.parametrize("info", [{}, {CALIBRATION_KEY: {"version": 2}}, {CALIBRATION_KEY: None}])
def test_a_worker_without_figures_of_this_version_has_none(info: dict[str, Any]) -> None:
    assert Calibration.of_worker(info) is None


def test_a_worker_tells_its_figures() -> None:
    assert Calibration.of_worker({CALIBRATION_KEY: SPEEDS.model_dump(mode="json")}) == SPEEDS


def test_every_stage_that_computes_has_work() -> None:
    work = search_work_of()
    assert list(work) == ["teacher", "supernet", "search", "retrain", "export", "report"]
    assert all(SPEEDS.seconds(part) > 0 for part in work.values())


@pytest.mark.parametrize(
    ("stage", "once", "twice"),
    [
        ("supernet", {"supernet": {"epochs": 10}}, {"supernet": {"epochs": 20}}),
        ("retrain", {"retrain": {"epochs": 5, "top_k": 1}}, {"retrain": {"epochs": 5, "top_k": 2}}),
    ],
)
def test_twice_the_training_is_twice_the_time(stage: str, once: dict[str, Any], twice: dict[str, Any]) -> None:
    assert SPEEDS.seconds(search_work_of(**twice)[stage]) == pytest.approx(
        2 * SPEEDS.seconds(search_work_of(**once)[stage])
    )


def test_small_batches_cost_more_time_for_as_many_images() -> None:
    small, large = (search_work_of(supernet={"batch_size": size})["supernet"] for size in (16, 128))
    assert small.macs == large.macs
    assert SPEEDS.seconds(small) > 1.5 * SPEEDS.seconds(large)


def test_unlabelled_backbones_are_neither_retrained_nor_held_out() -> None:
    work = search_work_of(retrain={"mode": "none"})
    assert "retrain" not in work
    assert work["report"] == Work()


def test_separate_training_takes_longer_than_a_shared_one() -> None:
    def seconds(method: str) -> float:
        spec = SlimmableSpec.model_validate({"method": method, "dataset": "digits"})
        work, _ = forecast_widths(resolve_slimmable(spec, DIGITS), DIGITS)
        return sum(map(SPEEDS.seconds, work.values()))

    assert seconds("separate") > seconds("usnet")


def test_a_range_holds_its_likely_value_and_widens_with_doubtful_figures() -> None:
    work, footprint = {"supernet": Work(macs=1e12)}, Footprint(trainings=())
    sure = estimate(work, footprint, [SPEEDS], devices=1, checkpoint_s=15)
    unsure = estimate(work, footprint, [SPEEDS.model_copy(update={"error": 0.5})], devices=1, checkpoint_s=15)
    assert sure is not None
    assert unsure is not None
    for span in (sure.wall_seconds, sure.device_hours, sure.memory_mb, sure.disk_mb):
        assert span.low <= span.likely <= span.high
    assert unsure.wall_seconds.low < sure.wall_seconds.low < sure.wall_seconds.high < unsure.wall_seconds.high


def test_a_slow_worker_among_fast_ones_widens_the_range() -> None:
    work, footprint = {"supernet": Work(macs=1e12)}, Footprint(trainings=())
    slow = SPEEDS.model_copy(update={"macs_per_s": 1e9})
    alone = estimate(work, footprint, [SPEEDS], devices=1, checkpoint_s=15)
    mixed = estimate(work, footprint, [SPEEDS, SPEEDS, slow], devices=1, checkpoint_s=15)
    assert alone is not None
    assert mixed is not None
    assert mixed.wall_seconds.likely == alone.wall_seconds.likely
    assert mixed.wall_seconds.high > 5 * alone.wall_seconds.high


def test_without_figures_there_is_no_estimate() -> None:
    assert estimate({}, Footprint(trainings=()), [], devices=1, checkpoint_s=15) is None


def test_the_largest_training_decides_the_memory() -> None:
    sizes = [TrainingSize(stage="a", weights=10**6), TrainingSize(stage="b", weights=10**7)]
    assert Footprint(trainings=tuple(sizes)).memory_mb(base_mb=100.0) == pytest.approx(100 + 160)


def test_checkpoints_of_long_stages_fill_the_disk() -> None:
    footprint = Footprint(trainings=(TrainingSize(stage="a", weights=10**6),), left_bytes=4e6)
    least, most = footprint.disk_mb({"a": 150.0}, checkpoint_s=15)
    assert (least, most) == pytest.approx((8, 8 + 12 * 11))


def test_activations_grow_with_batch_and_tokens() -> None:
    largest = resolve_search(SearchSpec(method="masktas", dataset=DatasetRef(id="digits")), DIGITS).space.largest()
    assert activations(largest, 17, 64) == 4 * activations(largest, 17, 16) == 2 * activations(largest, 34, 16)
