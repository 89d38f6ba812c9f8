from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from service.errors import GpuOutOfMemory, OutOfMemory
from workers.memory import is_out_of_memory, limit_data, memory_facts, out_of_memory, prefer_to_kill, suspicion

HOARD = "import sys; sys.stdin.readline(); bytearray(800 * 10**6)"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), OutOfMemory),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), OutOfMemory),
        (RuntimeError("std::bad_alloc"), OutOfMemory),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), GpuOutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), GpuOutOfMemory),
    ],
)
def test_errors_of_allocators_are_known(error: Exception, kind: type[OutOfMemory]) -> None:
    assert is_out_of_memory(error)
    assert type(out_of_memory(error)) is kind


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("std::bad_alloc"), OSError(12, "memory")])
def test_other_errors_are_not(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_torch_itself_says_what_we_look_for() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.float64)
    assert is_out_of_memory(caught.value) or "invalid" in str(caught.value).lower()


def hoarder() -> subprocess.Popen[bytes]:
    return subprocess.Popen((sys.executable, "-c", HOARD), stdin=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")
@pytest.mark.parametrize(("limit_mb", "code"), [(400, 1), (2000, 0)])
def test_allocations_beyond_the_limit_fail(limit_mb: int, code: int) -> None:
    process = hoarder()
    limit_data(process.pid, limit_mb * 10**6)
    assert memory_facts(process.pid)["memory_limit_bytes"] <= limit_mb * 10**6
    _, log = process.communicate(b"\n", timeout=60)
    assert process.returncode == code
    assert (b"MemoryError" in log) is bool(code)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_trainer_is_killed_before_its_worker() -> None:
    process = hoarder()
    prefer_to_kill(process.pid)
    assert int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()) >= 500
    process.communicate(b"\n", timeout=60)


def test_facts_of_a_process_that_is_gone_are_none() -> None:
    process = hoarder()
    process.communicate(b"\n", timeout=60)
    assert memory_facts(process.pid) == {}
    limit_data(process.pid, 10**9)
    prefer_to_kill(process.pid)


def test_own_facts_are_plausible() -> None:
    facts = memory_facts(os.getpid())
    assert 10**6 < facts["rss_bytes"] <= facts["peak_rss_bytes"]
    assert facts["memory_limit_bytes"] > 10**8


@pytest.mark.parametrize(
    ("held", "limit", "suspected"),
    [(900, 1000, True), (100, 1000, False), (900, None, False)],
)
def test_memory_is_suspected_when_nearly_all_was_held(held: int, limit: int | None, suspected: bool) -> None:
    facts = {"peak_rss_bytes": held} | ({} if limit is None else {"memory_limit_bytes": limit})
    assert bool(suspicion(facts)) is suspected
