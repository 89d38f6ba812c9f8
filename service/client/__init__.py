"""A client of the HTTP API, for the command line and for scripts.

    from service.client import Client

    with Client("http://127.0.0.1:8000", api_key) as client:
        job = client.search({"method": "masktas", "dataset": "digits"})
        for event in client.follow(job.id):
            print(event.type, event.data)
        client.download_all(client.artifacts(job.id), Path("result"))

It needs none of the server's parts, can be used by one thread at a time, and repeats what is safe to repeat: every
creating request carries an idempotency key, streams go on after the last event seen, downloads after the last byte.
"""

from service.client.client import Client
from service.client.errors import ApiError, ClientError, DigestMismatch, NoServer, Unreachable
from service.client.records import (
    Agent,
    Artifact,
    Candidate,
    Dataset,
    Device,
    Event,
    Job,
    Page,
    Problem,
    ProblemItem,
    Space,
    Supernet,
    Teacher,
    Width,
)

__all__ = [
    "Agent",
    "ApiError",
    "Artifact",
    "Candidate",
    "Client",
    "ClientError",
    "Dataset",
    "Device",
    "DigestMismatch",
    "Event",
    "Job",
    "NoServer",
    "Page",
    "Problem",
    "ProblemItem",
    "Space",
    "Supernet",
    "Teacher",
    "Unreachable",
    "Width",
]
