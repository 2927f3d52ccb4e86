"""Whether a GGUF file is that of an embedding model."""

from __future__ import annotations

from forerun.models.gguf_header import GgufHeader

_POOLS_NOTHING = 0
"""llama.cpp's LLAMA_POOLING_TYPE_NONE."""


def pools(header: GgufHeader) -> bool:
    """The file says how the vectors of a text's tokens become one (`pooling_type`), as those of embedding models do:
    encoders and decoders alike. Models that write text say nothing of the kind."""
    pooling = header.hparam("pooling_type")
    return isinstance(pooling, int) and pooling > _POOLS_NOTHING
