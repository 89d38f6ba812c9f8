from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from models.architecture import Architecture
from search.cost import macs
from search.latency import MAX_NS, LatencyTable
from service.errors import LatencyUnmeasurable
from service.jobs.resolve import design_of, resolve_build
from service.jobs.spec import DeviceSpec, LatencyBuildSpec
from tests.channels import RecordingChannel
from tests.stage_runs import resumed
from tests.unit.workers.stages.runs import StopAt, run_until
from workers.latency.execution import Execution
from workers.latency.measure import Latency
from workers.protocol import CheckpointMessage, Result, Start, Warn
from workers.stages.run import run_job

SPACE = {
    "preset": "micro",
    "img_size": 8,
    "in_chans": 1,
    "overrides": {"embed_dim": [16, 32], "depth": [1, 2], "num_heads": [1, 2], "mlp_ratio": [1.0, 2.0]},
}


def build_of(**changes: Any) -> LatencyBuildSpec:
    asked = {"space": SPACE, "held_out": 6, "runs": 3, "warmup_runs": 1, **changes}
    return resolve_build(LatencyBuildSpec.model_validate(asked))


def start_of(folder: Path, **changes: Any) -> Start:
    run_dir = folder / "runs" / "1"
    run_dir.mkdir(parents=True)
    return Start(
        job_id="job_test",
        fence=1,
        kind="latency_table",
        spec=DeviceSpec(name="here", build=build_of(**changes)).model_dump(mode="json"),
        seed=0,
        run_dir=str(run_dir),
        cache_dir=str(folder / "cache"),
        threads=1,
        device="cpu",
        checkpoint_s=15,
        lease_s=60,
        dataset={},
    )


@pytest.fixture
def additive_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass takes one microsecond for each 1000 MACs of its network: the true times depend on the host."""

    def pass_of(self: Execution, network: Any, images: Any, scratch: Path) -> Any:
        arch = Architecture(
            embed_dim=network.embed_dim,
            depth=len(network.blocks),
            num_heads=tuple(block.attn.num_heads for block in network.blocks),
            mlp_ratio=tuple(block.mlp.fc1.out_features / network.embed_dim for block in network.blocks),
            head_dim=16,
            img_size=8,
            patch_size=2,
            in_chans=1,
            num_classes=10,
        )
        return lambda: macs(arch)

    monkeypatch.setattr(Execution, "pass_of", pass_of)
    monkeypatch.setattr("workers.latency.measure._timed", lambda run, clock: run())


def test_a_measured_table_prices_the_space_and_tells_its_error_on_networks_that_it_has_not_seen(
    tmp_path: Path, additive_clock: None
) -> None:
    result = run_job(start_of(tmp_path), RecordingChannel())
    assert result.latency_table is not None
    table = LatencyTable.from_json(result.latency_table)
    chosen = design_of(build_of())
    assert [held.genotype for held in table.held_out] == [arch.genotype for arch in chosen.held_out]
    assert [held.measured_ns for held in table.held_out] == [macs(arch) for arch in chosen.held_out]
    assert table.mape == pytest.approx(0, abs=1e-3)
    assert result.result["error_share"] == table.mape
    assert result.result["digest"] == table.digest()
    assert result.result["networks"] == {"fitted": len(chosen.fitted), "held_out": 6}
    assert (table.setting.threads, table.setting.runs, table.setting.num_classes) == (1, 3, 10)


def test_a_machine_that_grows_slower_between_groups_spoils_no_prediction(
    tmp_path: Path, additive_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled, factors = Execution.settled, iter(range(10, 100))
    used: list[int] = []

    def slower(self: Execution) -> AbstractContextManager[None]:
        used.append(factor := next(factors))
        monkeypatch.setattr("workers.latency.measure._timed", lambda run, clock: factor * run())
        return settled(self)

    monkeypatch.setattr(Execution, "settled", slower)
    result = run_job(start_of(tmp_path), RecordingChannel())
    assert result.latency_table is not None
    assert LatencyTable.from_json(result.latency_table).mape == pytest.approx(0, abs=1e-3)
    assert len(used) > 1, "one group cannot differ from another"
    assert result.result["drift_share"] == pytest.approx(used[-1] / used[0] - 1)


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_networks_are_really_run(tmp_path: Path, runtime: str) -> None:
    start = start_of(tmp_path, runtime=runtime, networks=8, held_out=1)
    result = run_job(start, RecordingChannel())
    assert result.latency_table is not None
    table = LatencyTable.from_json(result.latency_table)
    assert table.setting.runtime == runtime
    assert 1_000 < table.held_out[0].measured_ns < 10_000_000_000
    assert list(Path(start.run_dir).iterdir()) == []


def test_a_resumed_job_keeps_what_was_measured(tmp_path: Path, additive_clock: None, every_progress: None) -> None:
    start = start_of(tmp_path)
    saved = run_until(start, StopAt("measure", 0.1)).last_checkpoint
    known = saved.state["state"]["taken"]
    assert 0 < len(known) < len(design_of(build_of()).networks)
    known[next(iter(known))]["ns"] += 12_345  # nobody would measure this again
    channel = RecordingChannel()
    run_job(resumed(start, saved, tmp_path), channel)
    last = channel.of_type(CheckpointMessage)[-1].state["state"]["taken"]
    assert last.items() >= known.items()
    assert len(last) == len(design_of(build_of()).networks)


def test_a_precision_that_the_worker_has_not_is_an_error_that_names_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(LatencyUnmeasurable, match="computes in fp32, bf16, not in fp16"):
        run_job(start_of(tmp_path, precision="fp16"), RecordingChannel())


def test_a_table_that_predicts_badly_is_told(
    tmp_path: Path, additive_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter(range(10**9))
    monkeypatch.setattr("workers.latency.measure._timed", lambda run, clock: run() * (1 + next(turns) % 7))
    channel = RecordingChannel()
    result: Result = run_job(start_of(tmp_path), channel)
    assert result.result["error_share"] > 0.1
    assert "latency_error_large" in {warning.code for warning in channel.of_type(Warn)}


def measured_elsewhere(load: float = 0.1) -> dict[str, Any]:
    """What an agent has sent, from a machine on which every MAC takes a nanosecond."""
    chosen = design_of(build_of())
    machine = {"device": "a board", "threads": 3, "version": "2.10.0", "cores": 4, "load": load}
    rows = []
    for n, arch in enumerate(chosen.networks):
        ns = macs(arch)
        taken = Latency(ns, ns, ns, runs=3, warmup_runs=1, steady=True, outliers=0, anchor_ns=1000)
        held_out = n >= len(chosen.fitted)
        rows.append({"architecture": arch.to_json(), "held_out": held_out, "latency": asdict(taken)})
    return {"machine": machine, "networks": rows}


def test_what_an_agent_measured_becomes_a_table_without_measuring_here(tmp_path: Path) -> None:
    start = start_of(tmp_path, on="agent:board").model_copy(update={"measured": measured_elsewhere()})
    channel = RecordingChannel()
    result = run_job(start, channel)
    assert result.latency_table is not None
    table = LatencyTable.from_json(result.latency_table)
    assert (table.setting.device, table.setting.threads, table.setting.runs) == ("a board", 3, 3)
    assert [held.measured_ns for held in table.held_out] == [macs(arch) for arch in design_of(build_of()).held_out]
    assert table.mape == pytest.approx(0, abs=1e-3)
    assert channel.of_type(Warn) == []


def test_a_machine_elsewhere_that_was_busy_is_told(tmp_path: Path) -> None:
    start = start_of(tmp_path, on="agent:board").model_copy(update={"measured": measured_elsewhere(load=3.5)})
    channel = RecordingChannel()
    run_job(start, channel)
    assert {warning.code for warning in channel.of_type(Warn)} == {"machine_busy"}


def test_measurements_that_were_deleted_with_their_device_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LatencyUnmeasurable, match="was deleted"):
        run_job(start_of(tmp_path, on="agent:board"), RecordingChannel())


def test_times_that_no_table_can_hold_are_an_error_of_whoever_measured(tmp_path: Path) -> None:
    measured = measured_elsewhere()
    for row in measured["networks"][::2]:
        row["latency"] |= {"ns": MAX_NS, "anchor_ns": 1}
    start = start_of(tmp_path, on="agent:board").model_copy(update={"measured": measured})
    with pytest.raises(LatencyUnmeasurable, match="make no table"):
        run_job(start, RecordingChannel())
