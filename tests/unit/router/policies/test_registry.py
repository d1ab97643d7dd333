"""The registry, and that the README says what is in it."""

import re
from pathlib import Path

import pytest

import router.policies
from router.core.errors import ConfigurationError
from router.policies.registry import DEFAULT_POLICY, POLICIES, PolicySpec, make_policy

README = Path(router.policies.__file__).with_name("README.md")


def test_the_readme_lists_exactly_the_registered_policies_with_their_parameter_models() -> None:
    rows = re.findall(r"^\| `(\w+)`.*?\| (?:`(\w+)`|none) \|", README.read_text(), re.MULTILINE)
    registered = {
        name: entry.parameters.__name__ if entry.parameters.model_fields else ""
        for name, entry in POLICIES.items()
    }
    assert dict(rows) == registered


def test_the_readme_names_every_parameter_of_the_default_policy() -> None:
    text = README.read_text()
    assert [
        name for name in POLICIES[DEFAULT_POLICY].parameters.model_fields if name not in text
    ] == []


def test_the_default_is_registered() -> None:
    assert make_policy(PolicySpec()).name == DEFAULT_POLICY


def test_parameters_that_are_no_json_object_are_refused() -> None:
    for parameters in ("", "[]", "{", "3"):
        with pytest.raises(ConfigurationError):
            make_policy(PolicySpec("kv_aware", parameters))
