"""The OpenAPI document: the record of what clients may rely on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from service.cli.specfile import read_spec
from service.contract import contract
from service.datasets.builtin import BUILTINS
from service.jobs.resolve import resolve_search, resolve_slimmable
from service.jobs.spec import AnySearchSpec, SearchSpec, SlimmableSpec

COPY = Path(__file__).parents[3] / "docs" / "openapi.json"
PUBLIC = {"/healthz", "/readyz", "/readyz/workers"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(contract())
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def test_the_copy_in_the_repository_is_what_the_routes_say() -> None:
    assert contract() == COPY.read_text(encoding="utf-8"), "the API changed: run `make openapi` and look at the diff"


def test_operations_have_distinct_names_tags_and_words(document: dict[str, Any]) -> None:
    found = list(operations(document))
    names = [operation["operationId"] for _, _, operation in found]
    assert len(set(names)) == len(names)
    known = {tag["name"] for tag in document["tags"]}
    for method, path, operation in found:
        assert set(operation["tags"]) <= known, path
        assert operation["description"], (method, path)
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (method, path, parameter["name"])


def test_every_error_is_a_problem(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        errors = {code: answer for code, answer in operation["responses"].items() if int(code) >= 400}
        expected = {"422", "500", "503"} | (set() if path in PUBLIC else {"401", "403"})
        assert set(errors) >= expected, (method, path)
        if "requestBody" in operation:
            assert set(errors) >= {"400", "413", "415"}, (method, path)
        if "{" in path:
            assert "404" in errors, (method, path)
        for answer in errors.values():
            assert answer["content"] == {
                "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
            }
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_everything_but_the_probes_needs_a_key(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        assert ("security" in operation) == (path not in PUBLIC), (method, path)


def test_acting_requests_take_an_idempotency_key(document: dict[str, Any]) -> None:
    reading = {"/search/validate", "/architectures/cost", "/spaces/describe"}
    for method, path, operation in operations(document):
        names = {parameter["name"] for parameter in operation.get("parameters", ())}
        # What an agent says may be repeated as it is: it names its session, and networks by their numbers.
        acting = method == "post" and path not in reading and not path.startswith("/agents/")
        assert ("Idempotency-Key" in names) == acting, (method, path)


def test_lists_are_pages(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    lists = [name for name in schemas if name.endswith("List")]
    assert len(lists) >= 10
    for name in lists:
        assert set(schemas[name]["required"]) == {"data", "has_more", "next"}, name


def test_request_bodies_and_main_answers_have_examples(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for _, path, operation in operations(document):
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]["application/json"]
            schema = content["schema"]
            schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
            assert content.get("examples") or schema.get("examples"), path
    for name in ("JobView", "CandidateView", "ArtifactView", "DatasetView", "ArchitectureCost", "Problem"):
        assert schemas[name]["examples"], name


def test_the_examples_of_a_search_are_accepted(document: dict[str, Any]) -> None:
    examples = document["paths"]["/search"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    for example in examples.values():
        check_search(example["value"])


@pytest.mark.parametrize("path", sorted((COPY.parents[1] / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_the_example_files_are_searches_that_are_accepted(path: Path) -> None:
    check_search(read_spec(path))


def check_search(body: dict[str, Any]) -> None:
    match TypeAdapter[AnySearchSpec](AnySearchSpec).validate_python(body):
        case SearchSpec() as spec:
            resolve_search(spec, BUILTINS["digits"])
        case SlimmableSpec() as spec:
            resolve_slimmable(spec, BUILTINS["digits"])


def test_the_short_forms_are_documented(document: dict[str, Any]) -> None:
    fields = document["components"]["schemas"]["SearchSpec"]["properties"]
    for name in ("dataset", "space"):
        assert "string" in {branch.get("type") for branch in fields[name]["anyOf"]}, name


def test_all_references_lead_somewhere(document: dict[str, Any]) -> None:
    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            for key, value in part.items():
                if key == "$ref":
                    yield value
                else:
                    yield from references(value)
        elif isinstance(part, list):
            for item in part:
                yield from references(item)

    for reference in references(document):
        target: Any = document
        for name in reference.removeprefix("#/").split("/"):
            target = target[name]
        assert target, reference
