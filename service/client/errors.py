"""What can go wrong for a client of the API: one class for each thing that a caller can act on."""

from __future__ import annotations

from pathlib import Path

from service.client.records import Problem


class ClientError(Exception):
    """Base of this package's errors."""


class NoServer(ClientError):
    """Nothing answers at the URL, or not in time; the request may be sent again as it is."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"no answer from {url}: {reason}")


class Unreachable(ClientError):
    """No request can be made with this URL, key or proxy; ``str`` says which of them is at fault and why."""


class ApiError(ClientError):
    """The server refused a request; ``problem`` says why and what would have been allowed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        lines = [f"{problem.status} {problem.code or problem.title}: {problem.detail or problem.title}"]
        for item in problem.errors:
            allowed = "" if item.allowed is None else f" (allowed: {item.allowed})"
            lines.append(f"  {item.pointer or '/'}: {item.detail}{allowed}")
        super().__init__("\n".join(lines))


class DigestMismatch(ClientError):
    """A downloaded file is not the one that the server describes; it was removed."""

    def __init__(self, path: Path, expected: str, found: str) -> None:
        self.path = path
        self.expected = expected
        self.found = found
        super().__init__(f"{path}: sha256 is {found}, the server says {expected}; download it again")


def is_temporary(error: ClientError) -> bool:
    """Whether the same request may succeed a little later."""
    return isinstance(error, NoServer) or (isinstance(error, ApiError) and error.problem.retryable)
