"""The tiny model's files: the same everywhere, whole, and a tokenizer that loses nothing."""

import json
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer

from replicas.engines.vllm.tiny_model import ensure_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_tiny_model(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_has_about_four_million_parameters_in_float32(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    assert 3.5e6 < sum(tensor.size for tensor in tensors) < 4.5e6
    assert {tensor.dtype.name for tensor in tensors} == {"float32"}


def test_weights_are_wide_enough_for_text_to_depend_on_the_prompt(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        spread = file.get_tensor("model.layers.0.mlp.up_proj.weight").std()
    assert spread == pytest.approx(0.08, rel=0.02)


def test_takes_long_prompts(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["max_position_embeddings"] >= 8192


def test_is_the_same_on_every_machine(folder: Path, tmp_path: Path) -> None:
    again = ensure_tiny_model(tmp_path)
    assert again.name == folder.name
    for file in folder.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_a_second_call_makes_nothing(folder: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert ensure_tiny_model(folder.parent) == folder
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMPATH_CACHE", str(tmp_path / "chosen"))
    assert ensure_tiny_model().parent == tmp_path / "chosen"


def test_several_processes_at_once_leave_one_whole_model(tmp_path: Path, folder: Path) -> None:
    with get_context("spawn").Pool(3) as pool:
        found = pool.map(ensure_tiny_model, [tmp_path] * 6)
    assert {path.name for path in found} == {folder.name}
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, "tiny.lock"}
    assert {file.name for file in found[0].iterdir()} == {file.name for file in folder.iterdir()}


@given(text=st.text())
def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_an_empty_prompt_still_has_a_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("").ids == [0]


def test_tool_tags_are_one_token_and_are_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<tool_call></tool_call>", add_special_tokens=False).ids
    assert len(ids) == 2
    assert tokenizer.decode(ids) == "<tool_call></tool_call>"
