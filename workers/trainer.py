"""The trainer process: ``python -m workers.trainer``, started by a supervisor and of no use by hand.

It takes its orders from stdin, reports on stdout, logs to stderr, and writes files below its run directory only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO, Never, assert_never

from service.errors import ServiceError, StorageFull
from service.store.room import is_full
from workers.channel import Channel, StopRequested
from workers.deadman import DeadMan, end_own_group
from workers.memory import is_out_of_memory, out_of_memory
from workers.protocol import ErrorMessage, ExitCode, Lease, Result, Start, Started, Stop, decode_to_trainer
from workers.shard_messages import ShardGrant, ShardNews
from workers.versions import recorded_versions
from workers.watchdog import Watchdog

Job = Callable[[Start, Channel], Result]


def serve(job: Job) -> Never:
    """Run one job for the supervisor at the other end of stdin and stdout, and exit with an :class:`ExitCode`."""
    channel = Channel(_take_stdout())
    starts: queue.SimpleQueue[Start] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, channel, starts), name="orders", daemon=True).start()
    start = starts.get()
    watchdog = Watchdog(channel, start.lease_s, start.stall_s)
    code = _outcome(job, start, channel)
    watchdog.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # both are the log, and the disk may be full
            stream.flush()
    # No interpreter shutdown: the work is done, and what libraries do there can hang or crash.
    os._exit(code)


def _outcome(job: Job, start: Start, channel: Channel) -> ExitCode:
    try:
        channel.send(job(start, channel))
    except StopRequested:
        return ExitCode.STOPPED
    except ServiceError as error:
        return _report(channel, error)
    except BrokenPipeError:  # the supervisor is gone, and with it whoever could promote anything
        return ExitCode.LEASE_LOST
    except Exception as error:
        return _report(channel, _public(error))
    return ExitCode.DONE


def _public(error: Exception) -> ServiceError:
    """What users may know of an unexpected error. Its text may hold anything and stays in the log."""
    if is_full(error):
        return StorageFull("No room left in the worker's data folder.")
    if is_out_of_memory(error):
        return out_of_memory(error)
    return ServiceError("Training broke off by an unexpected error; the attempt's log has the details.")


def _report(channel: Channel, error: ServiceError) -> ExitCode:
    """Called while the exception is handled. The log comes last: on a full disk it cannot be written."""
    channel.send(ErrorMessage(error=error.to_json()))
    with contextlib.suppress(OSError):
        traceback.print_exc()
    return ExitCode.ERROR


def _take_stdout() -> BinaryIO:
    """Keep the pipe for ourselves and let whatever libraries print go to the log."""
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return pipe


def _listen(orders: BinaryIO, channel: Channel, starts: queue.SimpleQueue[Start]) -> None:
    """Follow the supervisor's orders. Their end means that it is dead: nothing written later could be promoted."""
    deadman: DeadMan | None = None
    try:
        for line in orders:
            match message := decode_to_trainer(line):
                case Start():
                    deadman = _guard(message.lease_s, channel)
                    starts.put(message)
                case Lease():
                    if deadman is not None:
                        deadman.renew(message.ttl_s)
                case ShardNews() | ShardGrant():
                    channel.deliver(message)
                case Stop():
                    channel.request_stop(message.reason)
                case _:
                    assert_never(message)
        print("the supervisor has gone", file=sys.stderr, flush=True)
    except Exception:
        traceback.print_exc()
    end_own_group()


def _guard(lease_s: float, channel: Channel) -> DeadMan:
    deadman = DeadMan(
        lease_s,
        soft_stop=lambda: channel.request_stop("lease_lost"),
        end=end_own_group,
        backstop=lambda seconds: faulthandler.dump_traceback_later(seconds, exit=True),
    )
    channel.guard(deadman.check)
    return deadman


def run_stages(start: Start, channel: Channel) -> Result:
    """The job of a trainer: the stages of the order's kind of job."""
    # Imported here: loading torch takes seconds, in which the trainer must already obey and watch its lease.
    import torch

    from workers.stages.run import run_job

    torch.set_num_threads(start.threads)
    torch.use_deterministic_algorithms(True)
    channel.send(Started(versions=recorded_versions()))
    return run_job(start, channel)


if __name__ == "__main__":
    serve(run_stages)
