"""The environment variables that vLLM reads at import; set in-process, so that users set none.

Call before anything imports vLLM. A variable that the user has set wins.
"""

import os
from pathlib import Path

from router.configuration import ModelConfig

_ALWAYS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Pinning threads to cores would put all replicas of a machine on the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def is_local(source: str) -> bool:
    """Whether the weights are on this machine: the tiny model, or a folder."""
    return source == "tiny" or Path(source).exists()


def prepare_environment(*models: ModelConfig) -> None:
    """Mutates `os.environ` of this process and so of its children."""
    for name, value in _ALWAYS.items():
        os.environ.setdefault(name, value)
    if all(is_local(model.source) for model in models):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
