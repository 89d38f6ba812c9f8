"""How much memory a process has, what it holds, and how to tell that it ran out. Needs no torch, so all may use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from service.errors import GpuOutOfMemory, OutOfMemory

OUT_OF_MEMORY = (MemoryError, RuntimeError)
"""What libraries raise when memory runs out, among other things: ask :func:`is_out_of_memory`."""

_GPU_TYPE = "OutOfMemoryError"  # torch.OutOfMemoryError, a RuntimeError, without importing torch
_GPU_WORDS = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_HOST_WORDS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "std::bad_alloc")

_LIMITED_WORDS = ("could not create a primitive", "could not create a memory object")
"""oneDNN's for want of memory and for other reasons, so they count only where allocations are limited."""

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_NEARLY_ALL = 0.7
"""Of the limit: what a process held was looked at seconds before its end, when it grew."""

_UNLIMITED_BYTES = 2**60  # cgroup v1 says so with a number of about 2**63


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that host or device had no memory left."""
    if isinstance(error, MemoryError) or _is_of_gpu(error) or _says(error, _HOST_WORDS):
        return True
    return _says(error, _LIMITED_WORDS) and _own_data_is_limited()


def out_of_memory(error: BaseException) -> OutOfMemory:
    """The typed form of an error of which :func:`is_out_of_memory` is true; its text stays out of it."""
    kind = GpuOutOfMemory if _is_of_gpu(error) else OutOfMemory
    where = "The device" if kind is GpuOutOfMemory else "The trainer"
    detail = f"{where} had no memory left; take a smaller batch or network, or a machine with more memory."
    return kind(detail, extra={"last_known": memory_facts()})


def memory_facts(pid: int | str = "self") -> dict[str, int]:
    """What a process holds and may hold: ``rss_bytes``, ``peak_rss_bytes``, ``memory_limit_bytes``, as far as known."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        limits = Path(f"/proc/{pid}/limits").read_text()
    except OSError:  # gone, or no Linux
        return {}
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    facts = {
        fact: int(fields[field][0]) * 1024
        for fact, field in (("rss_bytes", "VmRSS"), ("peak_rss_bytes", "VmHWM"))
        if field in fields  # a zombie has none
    }
    found = [_data_limit(limits), _machine_bytes(), *(_cgroup_limit(path) for path in _CGROUP_LIMITS)]
    limit = min((limit for limit in found if limit is not None), default=None)
    return facts if limit is None or not facts else {**facts, "memory_limit_bytes": limit}


def suspicion(facts: Mapping[str, int]) -> str:
    """What a kill by nobody we know was most likely for, as the end of a sentence; empty when memory was no reason."""
    held, limit = facts.get("peak_rss_bytes", 0), facts.get("memory_limit_bytes")
    if limit is None or held < _NEARLY_ALL * limit:
        return ""
    return f"; it held {held / 1e9:.1f} of {limit / 1e9:.1f} GB, so its memory most likely ran out"


def prefer_to_kill(pid: int) -> None:
    """Let the kernel, when memory runs out, kill this process before those that look after it."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text("500")
    except OSError:  # gone, no Linux, or a sandbox that forbids it: it is a preference, not a promise
        return


def limit_data(pid: int, limit_bytes: int) -> None:
    """Let allocations of a process fail beyond so many bytes of its own data, rather than the machine run full.

    Mapped files and what a GPU driver reserves do not count (``RLIMIT_DATA`` of setrlimit(2)). Nothing happens where
    the system cannot do it, or the process is gone.
    """
    import resource  # POSIX only

    prlimit = getattr(resource, "prlimit", None)
    if prlimit is None:
        return
    try:
        prlimit(pid, resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    except ProcessLookupError:
        return


def _is_of_gpu(error: BaseException) -> bool:
    return type(error).__name__ == _GPU_TYPE or _says(error, _GPU_WORDS)


def _says(error: BaseException, words: tuple[str, ...]) -> bool:
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def _own_data_is_limited() -> bool:
    import resource  # POSIX only

    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY


def _machine_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not known here
        return None


def _data_limit(limits: str) -> int | None:
    for line in limits.splitlines():
        if line.startswith("Max data size"):
            soft = line.removeprefix("Max data size").split()[0]
            return None if soft == "unlimited" else int(soft)
    return None


def _cgroup_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return None if text == "max" or int(text) >= _UNLIMITED_BYTES else int(text)
