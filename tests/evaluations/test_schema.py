"""The OpenAPI document: valid, complete, reviewed, and true of requests and answers."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import AsyncClient

from evaluations.examples import example_request
from tests.evaluations.conftest import Post

GOLDEN = Path(__file__).parent.parent / "openapi.yaml"
REFRESH = "python manage.py spectacular --validate --fail-on-warn --file tests/openapi.yaml"


@pytest.fixture
async def document(api: AsyncClient) -> dict[str, Any]:
    response = await api.get("/openapi.json")
    assert response["Content-Type"] == "application/json"
    whole: dict[str, Any] = response.json()
    return whole


def validate(document: dict[str, Any], component: str, value: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{component}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def test_document_is_valid_without_warnings_and_as_reviewed() -> None:
    output = StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=output)
    assert output.getvalue().strip() == GOLDEN.read_text(encoding="utf-8").strip(), (
        f"The API's description changed. Review the change, then run: {REFRESH}"
    )


async def test_only_the_api_is_described(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": "/", "description": "This server"}]
    assert set(document["paths"]) == {
        "/v1/systemone",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/limits",
        "/health",
        "/health/live",
    }
    assert set(document["paths"]["/v1/systemone"]) == {"post"}
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


async def test_unions_have_a_discriminator(document: dict[str, Any]) -> None:
    for name in ("Question", "Answer"):
        union = document["components"]["schemas"][name]
        assert len(union["oneOf"]) == 3
        assert union["discriminator"]["propertyName"] == "type"
        assert set(union["discriminator"]["mapping"]) == {"noul", "choice", "score"}


async def test_every_type_and_every_error_has_an_example_that_fits(
    document: dict[str, Any], post: Post
) -> None:
    operation = document["paths"]["/v1/systemone"]["post"]
    (content,) = operation["requestBody"]["content"].values()
    asked = [example["value"] for example in content["examples"].values()]
    assert asked[0] == example_request()
    assert len(asked) == 4
    for value in asked:
        validate(document, "EvaluationRequest", value)
        assert (await post(value)).status_code == 200
    statuses = {"200", "400", "401", "413", "415", "422", "502", "503", "504", "529"}
    assert set(operation["responses"]) == statuses
    for status, response in operation["responses"].items():
        media = response["content"]["application/json"]
        component = media["schema"]["$ref"].rsplit("/", 1)[-1]
        (example,) = media["examples"].values()
        validate(document, component, example["value"])
        assert "x-typesafe-request-id" in response["headers"], status


async def test_answers_and_errors_are_as_described(document: dict[str, Any], post: Post) -> None:
    validate(document, "EvaluationResult", (await post(example_request())).json())
    validate(document, "RequestError", (await post({"state": None})).json())
    validate(document, "Error", (await post({}, content_type="text/plain")).json())


@pytest.mark.parametrize(
    ("path", "component"),
    [
        ("/v1/models", "Models"),
        ("/v1/models/jev-latest", "ModelEntry"),
        ("/v1/limits", "Limits"),
        ("/health", "Health"),
        ("/health/live", "Liveness"),
        ("/v1/models/none", "Error"),
    ],
)
async def test_other_routes_are_as_described(
    document: dict[str, Any], api: AsyncClient, path: str, component: str
) -> None:
    validate(document, component, json.loads((await api.get(path)).content))


def test_example_is_the_file_that_the_readme_posts() -> None:
    path = Path(settings.BASE_DIR) / "examples" / "request.json"
    assert example_request() == json.loads(path.read_text(encoding="utf-8"))
