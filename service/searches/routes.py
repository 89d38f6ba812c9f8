"""Routes that start a search or say what it would be."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from fastapi.responses import JSONResponse

from service.auth import JobReader, JobWriter
from service.errors import ConstraintUnsatisfiable, DatasetInvalid, IdempotencyInProgress, IdempotencyKeyReuse
from service.http import StrictRoute, url
from service.idempotency import OnceDep, json_response
from service.jobs.schemas import JobView
from service.jobs.service import show_job
from service.jobs.spec import AnySearchSpec
from service.openapi import Responses, problems
from service.searches.schemas import SearchPreview
from service.searches.service import preview_search, start_search
from service.services import ServicesDep, SessionDep

router = APIRouter(prefix="/search", tags=["search"], route_class=StrictRoute)

_EXAMPLES: dict[str, Example] = {
    "smallest": {"summary": "Everything by default", "value": {"method": "masktas", "dataset": "digits"}},
    "limited": {
        "summary": "Small networks, a short search",
        "value": {
            "name": "smallest ViT for my defects",
            "method": "masktas",
            "dataset": {"id": "digits", "val_fraction": 0.1, "holdout_fraction": 0.2},
            "space": {"preset": "micro", "overrides": {"depth": [3, 4]}},
            "constraints": [{"metric": "params_m", "max": 0.2}],
            "supernet": {"epochs": 50, "mask_ratio": 0.5, "beta": 1.0},
            "search": {"population": 20, "parents": 5, "generations": 10, "max_evaluations": 200},
            "retrain": {"mode": "finetune", "epochs": 30, "top_k": 2},
            "budget": {"max_wall_seconds": 3600},
            "seed": 7,
            "metadata": {"team": "line-3"},
        },
    },
    "slimmable": {
        "summary": "One network that runs at many widths",
        "value": {
            "method": "scala",
            "dataset": "digits",
            "constraints": [{"metric": "params_m", "max": 0.2}],
            "widths": {"smallest": 0.25, "step": 0.125},
            "training": {"epochs": 30},
            "export": {"top_k": 2},
        },
    },
}

SearchBody = Annotated[AnySearchSpec, Body(openapi_examples=_EXAMPLES, discriminator="method")]

_CREATED: Responses = {
    202: {
        "description": "The search is queued.",
        "headers": {"Location": {"description": "Path of the job.", "schema": {"type": "string"}}},
    },
    **problems(ConstraintUnsatisfiable, DatasetInvalid, IdempotencyInProgress, IdempotencyKeyReuse, body=True),
}


@router.post("", status_code=202, response_model=JobView, responses=_CREATED)
async def create_search(
    request: Request, spec: SearchBody, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Start a search. Only `method` and `dataset` are required; the job shows every default that is used."""

    async def act() -> JSONResponse:
        job = await start_search(session, caller.owner, spec)
        view = await show_job(session, caller.owner, job, parts.settings.lease_s)
        return json_response(view, 202, {"Location": url(request, f"/jobs/{view.id}")})

    return await once.perform(session, act)


@router.post("/validate", responses=problems(ConstraintUnsatisfiable, DatasetInvalid, body=True))
async def validate_search(
    spec: SearchBody, caller: JobReader, session: SessionDep, parts: ServicesDep
) -> SearchPreview:
    """What the same body would start, refused as it would be, and what it would take. Creates nothing."""
    return await preview_search(session, caller.owner, spec, parts.settings)
