"""How the command line says that something went wrong: what, where, what is allowed, and what to do next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

from service.client import ApiError, NoServer
from service.client.errors import ClientError
from service.client.records import Problem


class Exit(IntEnum):
    """Exit codes, for scripts to act on."""

    OK = 0
    JOB_NOT_SUCCEEDED = 1
    REFUSED = 2  # wrong usage, or a request that the server refuses
    NO_SERVER = 3
    INTERRUPTED = 130  # Ctrl-C, as shells have it


class UsageProblem(Exception):
    """Something in the command or in a file that only its user can put right.

    Args:
        what: a sentence.
        where: a file with line and column, a flag or a JSON pointer.
        allowed: what would have been accepted.
        next_step: what to do.
    """

    code: ClassVar[Exit] = Exit.REFUSED

    def __init__(self, what: str, *, where: str = "", allowed: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.allowed = allowed
        self.next_step = next_step


class NoServerKnown(UsageProblem):
    """No server runs on the data folder, and none was named."""

    code = Exit.NO_SERVER

    def __init__(self, folder: Path) -> None:
        super().__init__(f"no server runs on the data folder {folder}", next_step=_START_ONE)


_START_ONE = "start one with `vitailor up`, or name a running one with --url or VITAILOR_URL"

_NEXT_STEPS = {
    "unauthorized": "give the server's key in VITAILOR_API_KEY, or name its data folder with --data",
    "forbidden": "use a key that has the scope for this",
    "not_found": "`vitailor jobs`, `datasets`, `teachers list` and `supernets list` tell what there is",
    "validation_failed": "correct what is named above; `vitailor validate` checks without starting anything",
    "constraint_unsatisfiable": "choose a limit inside the reachable range",
    "unknown_width": "`vitailor supernets show ID` lists the widths and which of them are offered",
    "invalid_state": "`vitailor job ID` shows the state; the actions that are possible now are named above",
}


def _key_lines(keys: object) -> list[str]:
    """Every tensor at fault in a file of weights, one a line."""
    if not isinstance(keys, dict):
        return []
    lines = [f"  {fault}: {name}" for fault in ("missing", "unexpected") for name in keys.get(fault) or ()]
    for entry in keys.get("misshapen") or ():
        lines.append(f"  misshapen: {entry['name']} is {entry['found']}, expected {entry['expected']}")
    return lines


def report(error: ClientError | UsageProblem) -> Exit:
    """Write the error to stderr and return the exit code that goes with it."""
    lines, code = _told(error)
    print("\n".join(lines), file=sys.stderr)
    return code


def problem_lines(problem: Problem) -> list[str]:
    """A problem of the API or of a job, one fault a line."""
    lines = [f"error: {problem.detail or problem.title}"]
    for item in problem.errors:
        lines.append(f"  at {item.pointer or '/'}: {item.detail}")
        if item.allowed is not None:
            lines.append(f"     allowed: {_in_words(item.allowed)}")
    lines += _key_lines((problem.model_extra or {}).get("keys"))
    return lines


def _told(error: ClientError | UsageProblem) -> tuple[list[str], Exit]:
    match error:
        case UsageProblem():
            return list(_usage_lines(error)), error.code
        case NoServer():
            return [f"error: no server answers at {error.url} ({error.reason})", f"next: {_START_ONE}"], Exit.NO_SERVER
        case ApiError(problem=problem):
            lines = problem_lines(problem)
            again = "the server cannot do this just now; try again later" if problem.retryable else ""
            next_step = _NEXT_STEPS.get(problem.code) or again
            lines += [f"next: {next_step}"] if next_step else []
            lines += [f"  (request {problem.request_id})"] if problem.status >= 500 and problem.request_id else []
            return lines, Exit.REFUSED
        case _:
            return [f"error: {error}"], Exit.REFUSED


def _usage_lines(error: UsageProblem) -> Iterator[str]:
    yield f"error: {error.what}"
    if error.where:
        yield f"  at {error.where}"
    if error.allowed:
        yield f"     allowed: {error.allowed}"
    if error.next_step:
        yield f"next: {error.next_step}"


def _in_words(allowed: object) -> str:
    match allowed:
        case [*items]:
            return ", ".join(map(_in_words, items))
        case {"metric": metric, "min": low, "max": high}:
            return f"{metric} from {_number(low)} to {_number(high)}"
        case {**pairs}:
            return ", ".join(f"{key} {value}" for key, value in pairs.items())
        case _:
            return str(allowed)


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)
