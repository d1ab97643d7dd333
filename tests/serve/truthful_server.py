"""What an engine really holds, and what the index believes: read where they are, for tests."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from replicas.server import LLMServer
from router.serve.index_actor import BlockIndexActor

REPORT_INTERVAL_S = 0.05


def known_blocks(actor: BlockIndexActor) -> dict[str, set[int]]:
    """Of each replica that the index knows. To be called inside its actor."""
    index = actor._service.index
    with actor._lock:
        return {
            str(replica_id): {
                int(block_hash)
                for part in index.snapshot(replica_id)
                for run in part.stored
                for block_hash in run.hashes
            }
            for replica_id in index.blocks_by_replica()
        }


class TruthfulServer(LLMServer):
    """A replica that writes its id and its engine's blocks into a file of `folder`."""

    def __init__(self, model: dict[str, Any], folder: str) -> None:
        super().__init__(model)
        self._path = Path(folder) / f"{os.getpid()}.json"
        self._writing: asyncio.Task[None] | None = None

    async def record_replica_metadata(self) -> dict[str, Any]:
        metadata = await super().record_replica_metadata()
        self._writing = asyncio.create_task(self._write(metadata["replica_id"]))
        return metadata

    async def _write(self, replica_id: str) -> None:
        while True:
            blocks = list(self._engine._pool.contents())  # type: ignore[union-attr]
            draft = self._path.with_suffix(".draft")
            draft.write_text(json.dumps([replica_id, blocks]))
            draft.replace(self._path)
            await asyncio.sleep(REPORT_INTERVAL_S)
