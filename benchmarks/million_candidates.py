"""A search of a million candidates: what it takes to record them, and what the API takes to show them.

Run ``python benchmarks/million_candidates.py [--candidates 1000000]``. It starts PostgreSQL and the API in a temporary
folder, writes generations through the recorder of a worker, under the fence of a claimed job, and reads them back over
HTTP. Memory is the resident set of the API's process, before and after each kind of request.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from search.cost import cost
from search.pareto import Goal, GrowingFront
from search.presets import resolve
from service.db.engine import session_factory, sync_engine
from service.db.migrate import upgrade
from service.db.models import JobKind
from service.embedded.servers import Servers
from service.ids import IdKind, format_id
from service.jobs import transitions
from service.jobs.values import Claim, NewJob
from service.keys.service import ensure_bootstrap_key, new_key
from service.pagination import encode_cursor
from service.settings import Settings
from workers.protocol import CandidateRow, candidate_messages, decode_from_trainer, encode
from workers.recording import Recorder

SPACE = resolve("masktas-tiny")
GENERATION = 1000
ORDERS = ("n", "score", "params_m", "gmacs")
_CHUNK = 1 << 16


def generations(total: int) -> Iterator[list[CandidateRow]]:
    """Random members of the space with a score that rises with their size, and noise."""
    rng = np.random.default_rng(0)
    seen: set[tuple[float, ...]] = set()
    rows: list[CandidateRow] = []
    while len(seen) < total:
        arch = SPACE.sample(rng, num_classes=1000)
        if arch.genotype in seen:
            continue
        price, n = cost(arch), len(seen)
        seen.add(arch.genotype)
        rows.append(
            CandidateRow(
                n=n,
                generation=n // GENERATION,
                genotype=[float(gene) for gene in arch.genotype],
                parents=[n // 2, n // 3],
                score=float(price.gmacs**0.5 + rng.normal(scale=0.05)),
                scores={"consistency": float(rng.normal()), "feature": float(rng.normal())},
                costs={"params_m": price.params_m, "gmacs": price.gmacs},
                feasible=n % 50 != 0,
                architecture=arch.to_json(),
            )
        )
        if len(rows) == GENERATION or len(seen) == total:
            yield rows
            rows = []


def load(sessions: sessionmaker[Session], total: int) -> Claim:
    """Claim a job and record its candidates as a supervisor does, protocol lines included."""
    job = NewJob(owner="default", kind=JobKind.SEARCH, name="million", spec={}, queue="cpu", seed=0)
    with sessions.begin() as session:
        transitions.enqueue(session, job)
        claim = transitions.claim_next(session, ["cpu"], "benchmark", 86_400.0)
    assert claim is not None
    written_s = protocol_s = front_s = 0.0
    longest_line = 0

    def write(change: Callable[[Session], None]) -> None:
        nonlocal written_s
        began = time.perf_counter()
        with sessions.begin() as session:
            change(session)
        written_s += time.perf_counter() - began

    recorder = Recorder(claim, write)
    front, began, done = GrowingFront([Goal.MAX, Goal.MIN]), time.perf_counter(), 0
    for rows in generations(total):
        at = time.perf_counter()
        usable = [row.feasible for row in rows]
        move = front.add(rows[0].n, [[row.score, row.costs["gmacs"]] for row in rows], usable)
        front_s += time.perf_counter() - at
        for message in candidate_messages(rows, move.joined, move.left, anew=done == 0):
            at = time.perf_counter()
            line = encode(message)
            received = decode_from_trainer(line)
            protocol_s += time.perf_counter() - at
            longest_line = max(longest_line, len(line))
            recorder.add(received)
        recorder.flush()
        done += len(rows)
        if done % (100 * GENERATION) == 0:
            print(f"  {done:>9,} recorded, {written_s:.0f} s in the database", flush=True)
    print(
        f"load: {done:,} candidates in {time.perf_counter() - began:.0f} s, of which database {written_s:.1f} s "
        f"({done / written_s:,.0f}/s), protocol {protocol_s:.1f} s, "
        f"front {front_s:.1f} s ({len(front.members)} members)"
    )
    print(f"longest line of the protocol: {longest_line / 1e3:.0f} kB")
    return claim


@dataclass(frozen=True)
class Api:
    """The API's process and a client of it."""

    pid: int
    client: httpx.Client

    @property
    def rss_mb(self) -> float:
        """Resident memory in MB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def timed(self, what: str, path: str, **params: str | float) -> bytes:
        """Read an answer bit by bit, and print what it took."""
        before, peak, size, head = self.rss_mb, 0.0, 0, b""
        began = time.perf_counter()
        with self.client.stream("GET", path, params=params) as response:
            assert response.status_code == 200, response.read()
            first_s = time.perf_counter() - began
            for chunk in response.iter_bytes(_CHUNK):
                size += len(chunk)
                head = head + chunk if len(head) < 64 * _CHUNK else head
                peak = max(peak, self.rss_mb)
        took_s = time.perf_counter() - began
        print(
            f"{what:<44} {1e3 * took_s:>10.1f} ms, first byte {1e3 * first_s:>7.1f} ms, {size / 1e6:>8.2f} MB, "
            f"API {before:.0f} -> peak {peak:.0f} MB"
        )
        return head


@contextmanager
def api(settings: Settings, key: str, log: Path) -> Iterator[Api]:
    """The API as a process of its own."""
    values = settings.model_dump(mode="json", exclude={"bootstrap_key"}, exclude_none=True)
    environment = {**os.environ, **{f"VITAILOR_{name.upper()}": str(value) for name, value in values.items()}}
    with socket.socket() as listener, log.open("ab") as output:
        listener.bind(("127.0.0.1", 0))
        fd = listener.fileno()
        command = [sys.executable, "-m", "service.main", "--fd", str(fd)]
        process = subprocess.Popen(command, env=environment, pass_fds=(fd,), stdout=output, stderr=output)
        host, port = listener.getsockname()
        headers = {"Authorization": f"Bearer {key}"}
        try:
            with httpx.Client(
                base_url=f"http://{host}:{port}", headers=headers, timeout=600, trust_env=False
            ) as client:
                while True:
                    assert process.poll() is None, log.read_text()
                    try:
                        client.get("/healthz")
                        break
                    except httpx.TransportError:
                        time.sleep(0.1)
                yield Api(process.pid, client)
        finally:
            process.terminate()
            process.wait()


def deep_cursor(sessions: sessionmaker[Session], claim: Claim, order: str, skip: int) -> str:
    """The cursor behind the row number ``skip`` of an order."""
    key = {"n": "n", "score": "-score"}.get(order, f"(costs ->> '{order}')::float8")
    statement = f"SELECT n, {key} FROM candidate WHERE job_id = :job ORDER BY {key}, n OFFSET :skip LIMIT 1"
    with sessions() as session:
        session.execute(text("SET LOCAL statement_timeout = 0"))
        n, found = session.execute(text(statement), {"job": claim.job_id, "skip": skip}).one()
    return encode_cursor(order, n) if order == "n" else encode_cursor(order, n, -found if order == "score" else found)


def read(server: Api, sessions: sessionmaker[Session], claim: Claim, total: int) -> None:
    """All that a user can ask of the candidates."""
    path = f"/jobs/{format_id(IdKind.JOB, claim.job_id)}"
    for order in ORDERS:
        server.timed(f"first page by {order}", f"{path}/candidates", sort=order, limit=100)
        cursor = deep_cursor(sessions, claim, order, total * 9 // 10)
        server.timed(f"page behind 90 % by {order}", f"{path}/candidates", sort=order, limit=100, after=cursor)
    server.timed("infeasible, by score", f"{path}/candidates", sort="score", feasible="false", limit=100)
    server.timed("on the front", f"{path}/candidates", on_front="true", limit=100)
    server.timed("within ranges, by score", f"{path}/candidates", sort="score", max_params_m=5, min_gmacs=1, limit=100)
    server.timed("front of the search", f"{path}/pareto")
    server.timed("front over params_m and score", f"{path}/pareto", x="params_m", y="score")
    for params in ({}, {"sort": "score"}):
        server.timed(f"CSV of all {params or 'by n'}", f"{path}/candidates", format="csv", **params)
    events = json.loads(server.timed("page of 100 events", f"{path}/events", limit=100))["data"]
    longest = max(len(json.dumps(event)) for event in events)
    print(f"longest of {len(events)} events: {longest:,} bytes")


def main() -> None:
    """Load, then read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=1_000_000)
    total: int = parser.parse_args().candidates
    with tempfile.TemporaryDirectory() as folder:
        # The server runs as another user, who must be able to enter.
        Path(folder).chmod(0o755)
        with Servers(Settings(_env_file=None, data_dir=Path(folder) / "data")) as servers:
            upgrade(servers.settings.database_url)
            engine = sync_engine(servers.settings.database_url, "benchmark")
            sessions = session_factory(engine)
            key = new_key()
            with sessions.begin() as session:
                ensure_bootstrap_key(session, key)
            claim = load(sessions, total)
            with sessions() as session:
                session.execute(text("SET LOCAL statement_timeout = 0"))
                session.execute(text("ANALYZE candidate"))
                size = session.scalar(text("SELECT pg_total_relation_size('candidate')"))
                session.commit()
            print(f"table with indexes: {size / 1e9:.2f} GB")
            with api(servers.settings, key, Path(folder) / "api.log") as server:
                read(server, sessions, claim, total)
            engine.dispose()


if __name__ == "__main__":
    main()
