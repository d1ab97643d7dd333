"""One real engine with the tiny model for all tests of this folder, and ways to talk to it."""

import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from replicas.engines.protocol import Engine, EngineInfo, EngineRequest, Route
from router.configuration import ModelConfig
from tests.contract.engine_client import EngineClient, make_request

MODEL = "tiny"
HEALTH_CHECK_TIMEOUT_S = 1.0

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine with its processes and the file that they log to."""

    engine: Engine
    info: EngineInfo
    client: EngineClient
    log: Path
    core: psutil.Process


def tiny_model(**fields: Any) -> ModelConfig:
    return ModelConfig(
        name=MODEL,
        tool_call_parser="hermes",
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        **fields,
    )


@pytest.fixture(scope="session")
def engine_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every process of vLLM logs to, the engine's own included. Set before vLLM loads."""
    folder = tmp_path_factory.mktemp("vllm")
    handler = {"class": "logging.FileHandler", "filename": str(folder / "log"), "level": "INFO"}
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"file": handler},
        "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    }
    (folder / "logging.json").write_text(json.dumps(config))
    os.environ["VLLM_LOGGING_CONFIG_PATH"] = str(folder / "logging.json")
    return folder / "log"


async def start_engine(model: ModelConfig, log: Path) -> RunningEngine:
    from replicas.engines.vllm.opening import open_engine

    before = {child.pid for child in psutil.Process().children()}
    engine = open_engine(model)
    info = await engine.start()
    (core,) = [
        child
        for child in psutil.Process().children()
        if child.pid not in before and child.name().startswith("VLLM::EngineCor")
    ]
    return RunningEngine(engine, info, EngineClient(engine, info), log, core)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running(engine_log: Path) -> AsyncIterator[RunningEngine]:
    started = await start_engine(tiny_model(), engine_log)
    yield started
    await started.engine.stop()


@pytest.fixture(scope="session")
def client(running: RunningEngine) -> EngineClient:
    return running.client


@pytest.fixture(scope="session")
def tokenizer(running: RunningEngine) -> Any:
    """The tiny model's own tokenizer, apart from vLLM."""
    from transformers import AutoTokenizer

    from replicas.engines.vllm.tiny_model import ensure_tiny_model

    return AutoTokenizer.from_pretrained(ensure_tiny_model())


@pytest.fixture(scope="session")
def chat(tokenizer: Any) -> Callable[..., EngineRequest]:
    """A greedy chat request, rendered outside the engine as the ingress does."""

    def request(messages: Messages, *, tools: Any = None, **options: Any) -> EngineRequest:
        ids = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, return_dict=False
        )
        fields = {"messages": messages} | ({"tools": tools} if tools else {})
        return make_request(ids, route=Route.CHAT, **fields, **options)

    return request
