"""What the documents say of configuration and names is what the code has."""

import json
import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from router.config_section import Section
from router.configuration import (
    AppConfig,
    AuthConfig,
    ContextsConfig,
    IndexConfig,
    IngressConfig,
    ModelConfig,
    RoutingConfig,
    ScaleConfig,
    SimConfig,
)
from router.kv_store_config import KvStoreConfig
from router.policies.registry import POLICIES

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)

SECTIONS: dict[str, type[Section]] = {
    "args": AppConfig,
    "models[]": ModelConfig,
    "models[].autoscaling": ScaleConfig,
    "models[].sim": SimConfig,
    "ingress": IngressConfig,
    "auth": AuthConfig,
    "index": IndexConfig,
    "contexts": ContextsConfig,
    "kv_store": KvStoreConfig,
    "user_config": RoutingConfig,
}


def rows(text: str, heading: str) -> dict[str, str]:
    """First and second column of the table under a heading."""
    _, _, rest = text.partition(f"\n### `{heading}`\n")
    body = re.split(r"\n#+ ", rest, maxsplit=1)[0]
    return {key: value.strip().strip("`") for key, value in ROW.findall(body)}


def documented(model: type[Section]) -> dict[str, str]:
    """Each field with its default as YAML writes it; sections as such."""
    result = {}
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if default is PydanticUndefined:
            result[name] = "required"
        elif isinstance(default, Section):
            result[name] = "section"
        else:
            result[name] = json.dumps(default).strip('"')
    return result


@pytest.mark.parametrize("heading", SECTIONS)
def test_configs_readme_lists_every_key_with_its_default(heading: str) -> None:
    text = (ROOT / "configs" / "README.md").read_text()
    assert rows(text, heading) == documented(SECTIONS[heading])


def test_policy_table_has_the_registry_names() -> None:
    text = (ROOT / "router" / "policies" / "README.md").read_text()
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == set(POLICIES)


def test_readme_names_every_script_and_config() -> None:
    text = (ROOT / "README.md").read_text()
    for folder in ("scripts", "configs"):
        for path in (ROOT / folder).iterdir():
            if path.is_file():
                name = "bench_" if path.stem.startswith("bench_") else path.stem
                assert name in text, path


def test_readme_can_be_read_in_one_sitting() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250
