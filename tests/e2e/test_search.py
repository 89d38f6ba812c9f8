"""A scaled-down search through HTTP: from a request to a network that runs where the project does not exist."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.architecture import Architecture
from search.cost import cost
from service.cli.proof import prove
from service.client import ApiError, Client
from service.embedded import Embedded
from tests.e2e.commands import COMMAND, run
from tests.e2e.conftest import Finished
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

STAGES = ["data", "teacher", "supernet", "search", "retrain", "export", "report"]


@pytest.fixture
def winner_folder(client: Client, finished: Finished, tmp_path: Path) -> Path:
    files = [file for file in client.artifacts(finished.job.id) if file.architecture == finished.winner.id]
    client.download_all(files, tmp_path / "winner")
    return tmp_path / "winner"


def tensors(weights: Path) -> dict[str, Any]:
    """Header of a safetensors file, read without its library: 8 bytes of length, then JSON."""
    with weights.open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return header


# --- the job ---------------------------------------------------------------------------------------------------------


def test_every_stage_ran_once_and_in_order(finished: Finished) -> None:
    stages = [event.data["stage"] for event in finished.events if event.type == "stage.progress"]
    assert [stage for stage, _ in itertools.groupby(stages)] == STAGES


def test_the_job_shows_every_default_that_was_used(client: Client, finished: Finished) -> None:
    """The effective spec is a valid body, and means the same search."""
    effective = finished.job.spec
    assert effective["search"]["max_evaluations"] is not None
    assert client.validate(effective)["spec"] == effective


def test_the_search_names_its_winner_and_what_it_is_worth(finished: Finished) -> None:
    accuracy = finished.winner.accuracy
    assert accuracy is not None
    assert 0 < accuracy["val"] <= 1
    assert 0 < accuracy["holdout"] <= 1
    assert finished.job.result is not None
    assert finished.job.result["pareto_size"] > 0


# --- events ----------------------------------------------------------------------------------------------------------


def test_the_stream_has_every_event_once_and_ends_with_the_end(client: Client, finished: Finished) -> None:
    ids = [event.id for event in finished.events]
    assert ids == list(range(1, len(ids) + 1))
    assert finished.events[-1].type == "end"
    assert [event.type for event in finished.events].count("end") == 1


def test_pages_tell_the_same_as_the_stream(client: Client, finished: Finished) -> None:
    paged = []
    while page := client.events(finished.job.id, after=len(paged)):
        paged += page
    assert [(e.id, e.type, e.data) for e in paged] == [(e.id, e.type, e.data) for e in finished.events]


def test_a_stream_is_replayed_from_any_point(client: Client, finished: Finished) -> None:
    for after in (0, 1, len(finished.events) // 2, len(finished.events) - 1):
        replayed = list(client.follow(finished.job.id, after=after))
        assert [event.id for event in replayed] == [event.id for event in finished.events[after:]]


# --- candidates ------------------------------------------------------------------------------------------------------


def test_candidates_are_distinct_networks_priced_by_the_formula(client: Client, finished: Finished) -> None:
    candidates = client.candidates(finished.job.id)
    assert [candidate.n for candidate in candidates] == list(range(len(candidates)))
    documents = {c.id: Architecture.from_json(_genes(client.architecture(c.id))) for c in candidates[:10]}
    assert len(set(documents.values())) == len(documents)
    for candidate in candidates[:10]:
        assert candidate.costs["params_m"] == cost(documents[candidate.id]).params_m


def test_feasible_candidates_are_within_the_limit_and_others_never_win(client: Client, finished: Finished) -> None:
    for candidate in client.candidates(finished.job.id):
        within = round(candidate.costs["params_m"] * 1_000_000) <= finished.most_parameters
        assert candidate.feasible == within
        assert candidate.feasible or candidate.rank is None


def test_no_candidate_beats_one_on_the_front(client: Client, finished: Finished) -> None:
    scored = [c for c in client.candidates(finished.job.id) if c.feasible and c.score is not None]
    front = client.pareto(finished.job.id)
    assert front
    for on_front in front:
        for other in scored:
            assert on_front.score is not None
            assert other.score is not None
            no_worse = other.score >= on_front.score and other.costs["gmacs"] <= on_front.costs["gmacs"]
            better = other.score > on_front.score or other.costs["gmacs"] < on_front.costs["gmacs"]
            assert not (no_worse and better), f"{other.id} beats {on_front.id}"


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_winner_comes_as_three_files(winner_folder: Path) -> None:
    assert sorted(p.name for p in winner_folder.iterdir()) == ["architecture.json", "model.py", "weights.safetensors"]


def test_the_file_holds_no_more_parameters_than_the_limit(winner_folder: Path, finished: Finished) -> None:
    counted = sum(math.prod(tensor["shape"]) for tensor in tensors(winner_folder / "weights.safetensors").values())
    assert counted == round(finished.winner.costs["params_m"] * 1_000_000)
    assert counted <= finished.most_parameters


def test_the_architecture_file_tells_where_it_came_from(winner_folder: Path, finished: Finished) -> None:
    document = json.loads((winner_folder / "architecture.json").read_text())
    assert document["provenance"]["job"] == finished.job.id
    assert document["classes"] == list("0123456789")
    digests = {file["name"]: file["sha256"] for file in document["files"]}
    weights = (winner_folder / "weights.safetensors").read_bytes()
    assert digests["weights.safetensors"] == hashlib.sha256(weights).hexdigest()


def test_the_network_runs_where_the_project_does_not_exist(winner_folder: Path, finished: Finished) -> None:
    proof = prove(winner_folder)
    assert proof.parameters <= finished.most_parameters
    accuracy = finished.winner.accuracy
    assert accuracy is not None
    # All digits, training images included: no worse than on the holdout, but for the luck of some images.
    assert proof.right / proof.images > accuracy["holdout"] - 0.05


def test_shortcuts_lead_to_the_winner(stack: Embedded, winner_folder: Path, finished: Finished) -> None:
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    with httpx.Client(base_url=stack.url, headers=headers) as http:
        document = http.get(f"/jobs/{finished.job.id}/architecture").json()
        weights = http.get(f"/jobs/{finished.job.id}/weights", follow_redirects=True)
        piece = http.get(weights.url, headers={"Range": "bytes=100-199"})
        known = http.get(weights.url, headers={"If-None-Match": weights.headers["ETag"]})
    content = (winner_folder / "weights.safetensors").read_bytes()
    assert document["embed_dim"] == json.loads((winner_folder / "architecture.json").read_text())["embed_dim"]
    assert weights.content == content
    assert weights.headers["ETag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    assert (piece.status_code, piece.content) == (206, content[100:200])
    assert known.status_code == 304


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_command_line_downloads_the_same_files(
    cli_environment: dict[str, str], winner_folder: Path, finished: Finished, tmp_path: Path
) -> None:
    shown = run(cli_environment, "job", finished.job.id)
    assert finished.winner.id.split("_")[0] in shown.stdout
    downloaded = run(cli_environment, "download", finished.job.id, "--out", str(tmp_path / "cli"))
    assert downloaded.returncode == 0, downloaded.stderr
    for path in winner_folder.iterdir():
        assert (tmp_path / "cli" / path.name).read_bytes() == path.read_bytes()


def test_ctrl_c_leaves_the_job_running_and_cancel_ends_it(cli_environment: dict[str, str], client: Client) -> None:
    arguments = ("search", "--dataset", "digits", "--method", "masktas", "--wait")
    waiting = subprocess.Popen([COMMAND, *arguments], env=cli_environment, stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    job_id = waiting.stdout.readline().strip()
    wait_until(lambda: client.job(job_id).status == "running", "the job runs", limit_s=60)
    waiting.send_signal(signal.SIGINT)
    told, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == 130
    assert f"vitailor job {job_id} --wait" in told
    assert client.job(job_id).status == "running"
    cancelled = run(cli_environment, "cancel", job_id)
    assert cancelled.returncode == 0, cancelled.stderr
    ended = run(cli_environment, "job", job_id, "--wait")
    assert ended.returncode == 1
    assert client.job(job_id).status == "cancelled"


# --- bad input -------------------------------------------------------------------------------------------------------

SOUND: dict[str, Any] = {"method": "masktas", "dataset": "digits"}


def limit(**sides: Any) -> dict[str, Any]:
    return {"constraints": [{"metric": "params_m", **sides}]}


@pytest.mark.parametrize(
    ("change", "status", "pointer"),
    [
        ({"epoch": 3}, 422, "/epoch"),
        ({"method": "magic"}, 422, "/method"),
        ({"dataset": "no-such"}, 422, "/dataset/id"),
        ({"constraints": [{"metric": "beauty", "max": 1}]}, 422, "/constraints/0/metric"),
        (limit(max=1e-6), 422, "/constraints/0/max"),
        (limit(min=1000.0), 422, "/constraints/0/min"),
        (limit(max=-1.0), 422, "/constraints/0/max"),
        ({"search": {"population": 10**9}}, 422, "/search/population"),
        ({"seed": -1}, 422, "/seed"),
        ({"supernet": {"epochs": "many"}}, 422, "/supernet/epochs"),
        ({"space": "no-such"}, 422, "/space/preset"),
    ],
)
def test_bad_input_is_refused_at_its_pointer_and_creates_nothing(
    client: Client, change: dict[str, Any], status: int, pointer: str
) -> None:
    before = len(client.jobs(limit=1000))
    with pytest.raises(ApiError) as caught:
        client.search(SOUND | change)
    assert caught.value.problem.status == status
    assert pointer in [item.pointer for item in caught.value.problem.errors]
    assert len(client.jobs(limit=1000)) == before


def test_an_impossible_limit_names_the_reachable_range(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.search(SOUND | limit(max=1e-6))
    problem = caught.value.problem
    assert problem.code == "constraint_unsatisfiable"
    [reach] = problem.errors[0].allowed
    smallest = client.validate(SOUND)["reachable"][0]
    assert reach["min"] == smallest["min"]


def test_a_wrong_key_is_refused(stack: Embedded) -> None:
    with Client(stack.url, "vt_wrong") as stranger, pytest.raises(ApiError) as caught:
        stranger.search(SOUND)
    assert caught.value.problem.status == 401


def _genes(document: dict[str, Any]) -> dict[str, Any]:
    genes = {"schema_version", *Architecture.__slots__}
    return {key: value for key, value in document.items() if key in genes}


# --- searching on ----------------------------------------------------------------------------------------------------


def test_another_search_takes_the_supernet_over_and_scores_alike(client: Client, finished: Finished) -> None:
    [supernet] = [supernet for supernet in client.supernets() if supernet.job == finished.job.id]
    before = client.candidates(finished.job.id)[:3]
    genes = ("embed_dim", "depth", "num_heads", "mlp_ratio")
    documents = [client.architecture(candidate.id) for candidate in before]
    listed = [{gene: document[gene] for gene in genes} for document in documents]
    job = client.search(
        {
            "method": "masktas",
            "dataset": "digits",
            "warm_start": supernet.id,
            "search": {"algorithm": "listed", "architectures": listed},
            "retrain": {"mode": "none"},
            "seed": finished.job.spec["seed"],
        }
    )
    events = list(client.follow(job.id))
    job = client.job(job.id)
    assert job.status == "succeeded", job.error
    assert [candidate.score for candidate in client.candidates(job.id)] == [candidate.score for candidate in before]
    # Nothing was trained.
    assert {event.data["stage"] for event in events if event.type == "metric"} == {"search"}
    assert job.result is not None
    assert finished.job.result is not None
    assert job.result["digests"] == finished.job.result["digests"]
    assert job.spec["supernet"] == finished.job.spec["supernet"]
    assert client.validate(job.spec)["spec"] == job.spec


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"warm_start": "sn_00000000000000000000000000000000"}, "/warm_start/supernet"),
        ({"space": "masktas-tiny"}, "/space"),
        ({"supernet": {"epochs": 3}}, "/supernet"),
    ],
)
def test_what_contradicts_the_supernet_is_refused(
    client: Client, finished: Finished, changes: dict[str, Any], pointer: str
) -> None:
    [supernet] = [supernet for supernet in client.supernets() if supernet.job == finished.job.id]
    with pytest.raises(ApiError) as caught:
        client.validate({"method": "masktas", "dataset": "digits", "warm_start": supernet.id, **changes})
    assert caught.value.problem.status == 422
    assert [item.pointer for item in caught.value.problem.errors] == [pointer]
