"""Numbers of the GGUF format (ggml's docs/gguf.md, gguf.h and ggml.h), and our limits."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32

# Limits for untrusted files. The largest header known to us is about 16 MB (262,144 tokens); the specification
# itself limits keys to 65,535 bytes and ggml tensors to four dimensions.
MAX_HEADER_BYTES: Final = 128 * 1024 * 1024
MAX_KEYS: Final = 65_536
MAX_TENSORS: Final = 262_144
MAX_KEY_BYTES: Final = 65_535
MAX_STRING_BYTES: Final = 16 * 1024 * 1024
MAX_ARRAY_STRINGS: Final = 4_194_304  # in all arrays together: walking them is the only slow part
MAX_DIMENSIONS: Final = 4
MAX_ELEMENTS: Final = 2**63 - 1


class ValueType(IntEnum):
    """`enum gguf_type`: the type of a metadata value."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# struct format of every value type of fixed size
SCALARS: Final = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}

# `enum ggml_type` -> (elements of a block, bytes of a block); checked against the `gguf` package in the tests
TENSOR_BLOCKS: Final = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 40),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
    41: (128, 18),  # Q1_0
}
