"""Which tiers a store has below its memory."""

from pathlib import Path

from replicas.kv.store.disk_tier import DiskTier
from replicas.kv.store.redis_tier import RedisTier
from replicas.kv.store.settings import StoreSettings
from replicas.kv.store.tier import Tier


def lower_tiers(settings: StoreSettings) -> list[Tier]:
    """The nearest first. Raises `ConfigurationError`."""
    tiers: list[Tier] = []
    if settings.disk_folder is not None:
        tiers.append(DiskTier(Path(settings.disk_folder), settings.disk_bytes))
    if settings.redis is not None:
        tiers.append(RedisTier(settings.redis, settings.application, settings.redis_bytes))
    return tiers
