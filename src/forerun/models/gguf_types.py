"""Numbers of the GGUF format (ggml's docs/gguf.md, gguf.h and ggml.h), and our limits."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32

# Limits for untrusted files: together they bound what reading a header takes (50 MB, a second), see
# tests/models/test_gguf_fuzz.py. The largest header known to us is about 16 MB (262,144 tokens and their merges); the
# specification itself limits keys to 65,535 bytes and ggml tensors to four dimensions.
MAX_HEADER_BYTES: Final = 24 * 1024 * 1024
MAX_KEYS: Final = 8_192
MAX_TENSORS: Final = 16_384  # 128 experts in tensors of their own, as in 2024, made 14,000
MAX_KEY_BYTES: Final = 65_535
MAX_TENSOR_NAME_BYTES: Final = 255  # ggml itself allows 63, some builds of it more
MAX_STRING_BYTES: Final = 16 * 1024 * 1024
MAX_TEXT_BYTES: Final = 4 * 1024 * 1024  # of all names and texts that are decoded
MAX_SHOWN_TEXT_BYTES: Final = 1024 * 1024  # a longer one (a tokenizer's whole JSON) stays raw
MAX_ARRAY_ELEMENTS: Final = 4_194_304  # in all arrays together
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


class TensorType(NamedTuple):
    """One of `enum ggml_type`: blocks of so many elements take so many bytes."""

    name: str
    elements: int
    nbytes: int


# checked against the `gguf` package in the tests
TENSOR_TYPES: Final = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
}

# `enum llama_ftype`: what most tensors of a file are, and how the others were chosen; checked likewise
FILE_TYPES: Final = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
}
