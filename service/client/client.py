"""One method for each thing that the API offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from service.client import download, events
from service.client.records import (
    Agent,
    Artifact,
    Candidate,
    Dataset,
    Device,
    Event,
    Job,
    Page,
    Record,
    Space,
    Supernet,
    Teacher,
)
from service.client.transport import Transport, segment

Json = dict[str, Any]
JobAction = Literal["cancel", "pause", "resume", "retry"]
R = TypeVar("R", bound=Record)

_PAGE = 100


class Client:
    """A connection to one ViTailor server, to be used as a context manager.

    Every method raises :class:`~service.client.errors.ApiError` when the server refuses and
    :class:`~service.client.errors.NoServer` when none answers.

    Args:
        url: of the server, such as ``http://127.0.0.1:8000``.
        api_key: of its owner's rights.
        retries: repetitions of a request that got no answer, or a temporary refusal.
    """

    def __init__(self, url: str, api_key: str | None = None, *, timeout_s: float = 30.0, retries: int = 3) -> None:
        self._transport = Transport(url, api_key, timeout_s=timeout_s, retries=retries)

    @property
    def url(self) -> str:
        """Of the server, without a slash at the end."""
        return self._transport.base_url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def search(self, spec: Json) -> Job:
        """Start a search; the job is queued when this returns."""
        return Job.model_validate(self._transport.post("/search", spec))

    def validate(self, spec: Json) -> Json:
        """What a search would be: effective spec, reachable cost ranges, feasibility. Nothing is created."""
        answer: Json = self._transport.post("/search/validate", spec)
        return answer

    def jobs(self, *, status: str | None = None, kind: str | None = None, limit: int = _PAGE) -> list[Job]:
        """The newest jobs first, at most ``limit``."""
        return self._list("/jobs", Job, limit, status=status, kind=kind)

    def job(self, job_id: str) -> Job:
        """A job as it is now."""
        return Job.model_validate(self._transport.get(f"/jobs/{segment(job_id)}"))

    def act(self, job_id: str, action: JobAction) -> Job:
        """Cancel, pause, resume or retry a job; repeating it is harmless."""
        return Job.model_validate(self._transport.post(f"/jobs/{segment(job_id)}/{action}"))

    def replay(self, job_id: str) -> Job:
        """Do the same once more; this is the new job, with the same spec and seed."""
        return Job.model_validate(self._transport.post(f"/jobs/{segment(job_id)}/replay"))

    def extend(self, job_id: str, **totals: float) -> Job:
        """Let a search go on longer: new totals of evaluations, generations, time or device hours.

        A paused one goes on itself; of one that has succeeded this is the new job that goes on with it.
        """
        return Job.model_validate(self._transport.post(f"/jobs/{segment(job_id)}/extend", totals))

    def events(self, job_id: str, *, after: int = 0, limit: int = _PAGE) -> list[Event]:
        """Events that exist now with an id above ``after``, in order, at most ``limit``."""
        return events.page(self._transport, job_id, after, limit)

    def follow(self, job_id: str, *, after: int = 0) -> Iterator[Event]:
        """Events as they come, each exactly once, until the job has ended."""
        return events.follow(self._transport, job_id, after)

    def candidates(
        self, job_id: str, *, sort: Literal["n", "score"] = "n", limit: int | None = None
    ) -> list[Candidate]:
        """The scored architectures of a search, as they were evaluated or the best first; all of them by default."""
        return self._list(f"/jobs/{segment(job_id)}/candidates", Candidate, limit, sort=sort)

    def winner(self, job_id: str) -> Candidate | None:
        """The network that won, None when there is none (yet)."""
        # Only the best-scored candidates are retrained, so the winner is among the first.
        best = self.candidates(job_id, sort="score", limit=_PAGE)
        return next((candidate for candidate in best if candidate.rank == 0), None)

    def pareto(self, job_id: str) -> list[Candidate]:
        """The candidates that no other one beats in every objective."""
        answer = self._transport.get(f"/jobs/{segment(job_id)}/pareto")
        return [Candidate.model_validate(item) for item in answer["data"]]

    def artifacts(self, job_id: str) -> list[Artifact]:
        """The files of a job."""
        return self._list(f"/jobs/{segment(job_id)}/artifacts", Artifact, None)

    def download(self, artifact: Artifact, path: Path) -> Path:
        """Fetch a file and check its digest; goes on where an earlier try broke off.

        Raises:
            DigestMismatch: when the bytes are not what the server says.
        """
        return download.download(self._transport, artifact, path)

    def download_all(self, artifacts: Iterable[Artifact], folder: Path) -> list[Path]:
        """Fetch files into a folder under their names."""
        return [self.download(artifact, folder / Path(artifact.name).name) for artifact in artifacts]

    def architecture(self, architecture_id: str) -> Json:
        """The architecture JSON of a candidate with its costs, scores and accuracies."""
        answer: Json = self._transport.get(f"/architectures/{segment(architecture_id)}")
        return answer

    def datasets(self) -> list[Dataset]:
        """Built-in and imported datasets."""
        return self._list("/datasets", Dataset, None)

    def dataset(self, dataset_id: str) -> Dataset:
        """A dataset as it is now."""
        return Dataset.model_validate(self._transport.get(f"/datasets/{segment(dataset_id)}"))

    def import_dataset(self, name: str, path: str, *, labels: Literal["auto", "none"] = "auto") -> Dataset:
        """Import a folder or Parquet file that lies below the server's import root; ``job`` of the result does it."""
        body = {"name": name, "source": {"path": path, "labels": labels}}
        return Dataset.model_validate(self._transport.post("/datasets", body))

    def teachers(self) -> list[Teacher]:
        """Registered and pretrained teachers, the newest first."""
        return self._list("/teachers", Teacher, None)

    def teacher(self, teacher_id: str) -> Teacher:
        """One teacher."""
        return Teacher.model_validate(self._transport.get(f"/teachers/{segment(teacher_id)}"))

    def add_teacher(self, source: Json, *, name: str | None = None) -> Job:
        """Register weights that exist already; ``result["teacher"]`` of the job is the id once it has succeeded.

        Args:
            source: ``{"timm": name}`` or ``{"path": below the server's import root}``, and what the file does not tell.
            name: what to call it.
        """
        return Job.model_validate(self._transport.post("/teachers", {"name": name, "source": source}))

    def devices(self) -> list[Device]:
        """Latency targets, the newest first."""
        return self._list("/devices", Device, None)

    def device(self, device_id: str) -> Device:
        """A device as it is now."""
        return Device.model_validate(self._transport.get(f"/devices/{segment(device_id)}"))

    def device_table(self, device_id: str) -> Json:
        """The latency table of a device."""
        table: Json = self._transport.get(f"/devices/{segment(device_id)}/table")
        return table

    def add_device(self, name: str, *, table: Json | None = None, build: Json | None = None) -> Device:
        """Bring a latency table, or have one measured: by ``job`` of the result, or first by a device agent."""
        body = {"name": name, "table": table, "build": build}
        return Device.model_validate(self._transport.post("/devices", body))

    def delete_device(self, device_id: str) -> None:
        """Delete a device; jobs keep the table that they were given."""
        self._transport.delete(f"/devices/{segment(device_id)}")

    def agents(self) -> list[Agent]:
        """Device agents by name."""
        return self._list("/agents", Agent, None)

    def put_agent(self, name: str, key: str) -> Agent:
        """Make a device agent, or change its key, which can do nothing but measure."""
        return Agent.model_validate(self._transport.put(f"/agents/{segment(name)}", {"key": key}))

    def remove_agent(self, name: str) -> None:
        """Forget a device agent and make its key invalid; tables that it measured stay."""
        self._transport.delete(f"/agents/{segment(name)}")

    def spaces(self) -> list[Space]:
        """The named search spaces."""
        return self._list("/spaces", Space, None)

    def supernets(self) -> list[Supernet]:
        """Supernets that jobs have trained or imported, the newest first."""
        return self._list("/supernets", Supernet, None)

    def supernet(self, supernet_id: str) -> Supernet:
        """One supernet."""
        return Supernet.model_validate(self._transport.get(f"/supernets/{segment(supernet_id)}"))

    def extract(self, supernet_id: str, asked: Json) -> Job:
        """Export one width of a slimmable network; the files are artifacts of the job, which takes seconds.

        Args:
            supernet_id: of the network.
            asked: ``{"width": n}``, ``{"ratio": r}``, or limits such as ``max_params_m`` or ``max_latency_ms``.
        """
        return Job.model_validate(self._transport.post(f"/supernets/{segment(supernet_id)}/extract", asked))

    def import_supernet(self, source: Json) -> Job:
        """Import a checkpoint of Scala's released code; ``result["supernet"]`` of the job is the id.

        Args:
            source: ``path`` below the server's import root, and what the file does not tell.
        """
        return Job.model_validate(self._transport.post("/supernets/import", source))

    def transfer(self, supernet_id: str, asked: Json) -> Job:
        """Judge the features of every offered width on another dataset; the job's result has both accuracies.

        Args:
            supernet_id: of the network.
            asked: ``dataset``, and the number ``k`` of nearest neighbours.
        """
        return Job.model_validate(self._transport.post(f"/supernets/{segment(supernet_id)}/transfer", asked))

    def _list(self, path: str, record: type[R], limit: int | None, **params: Any) -> list[R]:
        """Items of a paged list, in order, at most ``limit``."""
        items: list[R] = []
        cursor: str | None = None
        while limit is None or len(items) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(items))
            answer = self._transport.get(path, {**params, "limit": size, "after": cursor})
            page = Page[record].model_validate(answer)  # type: ignore[valid-type]
            items.extend(page.data)
            if not page.has_more:
                break
            cursor = page.next
        return items
