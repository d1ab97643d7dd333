"""Which weights a folder holds, without reading all of them."""

import hashlib
from pathlib import Path

_SAMPLE_BYTES = 1 << 20
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def weights_fingerprint(folder: Path) -> str:
    """Of its configuration and its weights: names, sizes, and bytes from start, middle and end of
    each file. The start of a safetensors file lists all its tensors. Raises `OSError`."""
    digest = hashlib.blake2b(digest_size=16)
    files = sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)})
    for path in (folder / "config.json", *files):
        size_bytes = path.stat().st_size
        digest.update(f"{path.name}\0{size_bytes}\0".encode())
        with path.open("rb") as file:
            for start in (0, size_bytes // 2, max(0, size_bytes - _SAMPLE_BYTES)):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
