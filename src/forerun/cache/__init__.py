"""Where the bytes of stored segments are kept: host memory, and files."""

from forerun.cache.opening import open_store
from forerun.cache.store import TieredStore

__all__ = ["TieredStore", "open_store"]
