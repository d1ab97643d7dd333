"""The served part of OpenAI's API, fuzzed: right and wrong requests, no server error, and every
answer as the API's own types have it.
"""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serve.sim_app import App

pytestmark = pytest.mark.ray

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

api = schemathesis.openapi.from_path(Path(__file__).parent / "openai_subset.yaml")


@api.parametrize()
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_answers_keep_to_the_schema_and_never_fault(case: schemathesis.Case, app: App) -> None:
    case.call_and_validate(base_url=app.url, checks=CHECKS)
