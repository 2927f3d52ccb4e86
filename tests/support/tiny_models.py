"""Tiny models with random weights, the beginning of SmolLM2's tokenizer and its chat template, made on demand.

A recipe (`TinyModel`) fully determines its file. Files lie in tests/.models, named by recipe and by a hash of
this code, and are written atomically, so any number of test processes may ask for the same one.

The weights are scaled so that the models are useful as test subjects:

- attention is peaked (scores with a standard deviation of about 3), so that the next token depends on single
  tokens far back: a wrong KV cell changes the output;
- the layers outweigh the token embedding, so that tied embeddings do not merely repeat the last token;
- logits have a standard deviation of about 5 and therefore gaps between the best two (median about 0.7) far
  above the noise between batch shapes, see tests/models/test_tiny_models.py;
- special tokens are never the best, so greedy output runs to its limit;
- the vocabulary is the first twelfth of SmolLM2's, whose merges come in order of use and so stay whole: scoring 49,152
  tokens at width 64 would be forty times the work of the layers, and nearly all that a test of the cache waits for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from tests.support import gguf_file as gguf
from tests.support.gguf_file import GgufFile, Tensor, boolean, f32, text, u32, u32_array

Kind = Literal["llama", "gemma3", "lfm2", "mamba", "glm4moe", "qwen35", "qwen2vl", "bert"]
Vocabulary = Literal["small", "smollm2", "permuted", "truncated", "padded"]
Pooling = Literal["none", "mean", "cls", "last", "rank"]
"""How an embedding model makes one vector of a text's tokens, by llama.cpp's numbers."""
Array = npt.NDArray[np.float32]

MODELS_FOLDER = Path(__file__).resolve().parents[1] / ".models"
CONTEXT = 8192
QUIET_TOKENS = 17  # SmolLM2's special tokens come first
SMALL_VOCABULARY = 4096
TRUNCATED_VOCABULARY = 3000
ORDINARY_TOKENS = (300, SMALL_VOCABULARY)
"""A range of ids that are text in all of these models and in SmolLM2."""
SWAPPED_TOKENS = (1_000, 2_000)
PADDING = 100
_UNUSED_TOKEN = 5  # llama.cpp's LLAMA_TOKEN_TYPE_UNUSED
HEAD_DISTURBANCE = 0.05
"""What an MTP head makes of the hidden state, as a share of what it makes of the token."""
DELTA_NET_GAIN = 0.02
"""What the recurrent layers of a model with an MTP head add."""
_F32, _F16 = 0, 1


@dataclass(frozen=True, slots=True)
class TinyModel:
    """Everything that determines one generated file.

    `noise` adds that fraction of each tensor's own spread as seeded noise: the same model, but worse, for drafts
    of any quality. `eos` replaces the end-of-sequence id in the metadata. Vocabularies: "small" is the first
    `SMALL_VOCABULARY` tokens of "smollm2"; "permuted" swaps the two `SWAPPED_TOKENS` of these, "truncated" keeps the
    first `TRUNCATED_VOCABULARY`, "padded" has `PADDING` more, unused.
    `pooling` makes an embedding model of it, or changes how one pools (encoders take the mean).
    """

    kind: Kind = "llama"
    seed: int = 0
    layers: int = 2
    noise: float = 0.0
    vocabulary: Vocabulary = "small"
    eos: int | None = None
    pooling: Pooling | None = None

    @property
    def file_name(self) -> str:
        recipe = "-".join(str(getattr(self, part.name)) for part in fields(self))
        return f"{recipe}-{_source_hash()}.gguf"


def build(model: TinyModel, tokenizer_from: Path, folder: Path = MODELS_FOLDER) -> Path:
    """The file of `model`, generated if it is not there yet, with the tokenizer of the GGUF `tokenizer_from`."""
    path = folder / model.file_name
    if not path.exists():
        assemble(model, tokenizer_from).write(path)
    return path


def assemble(model: TinyModel, tokenizer_from: Path) -> GgufFile:
    """The model in memory, to be edited (and broken) before it is written."""
    tokenizer = _tokenizer(model, tokenizer_from)
    tokens = len(gguf.strings_of(tokenizer["tokenizer.ggml.tokens"]))
    weights = _Weights(model)
    entries = _ARCHITECTURES[model.kind](weights, tokens)
    common = {"general.architecture": text(model.kind), "general.name": text(f"tiny random {model.kind}")}
    if model.kind == "bert":
        tokenizer["tokenizer.ggml.token_type_count"] = u32(2)
    if model.pooling is not None:
        entries["pooling_type"] = u32(get_args(Pooling).index(model.pooling))
    sizes = {f"{model.kind}.{key}": value for key, value in entries.items()}
    return GgufFile(common | sizes | tokenizer, weights.tensors)


@cache
def _source_hash() -> str:
    sources = (Path(__file__), Path(gguf.__file__))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


@cache
def _real_tokenizer(path: Path) -> dict[str, bytes]:
    return {key: value for key, value in gguf.read_entries(path).items() if key.startswith("tokenizer.")}


def _tokenizer(model: TinyModel, path: Path) -> dict[str, bytes]:
    entries = dict(_real_tokenizer(path))
    if model.vocabulary != "smollm2":
        entries |= _truncated(entries, TRUNCATED_VOCABULARY if model.vocabulary == "truncated" else SMALL_VOCABULARY)
    tokens = gguf.strings_of(entries["tokenizer.ggml.tokens"])
    if model.vocabulary == "permuted":
        first, second = SWAPPED_TOKENS
        tokens[first], tokens[second] = tokens[second], tokens[first]
        entries["tokenizer.ggml.tokens"] = gguf.string_array(tokens)
    elif model.vocabulary == "padded":
        entries |= _padded(entries, tokens)
    if model.eos is not None:
        entries["tokenizer.ggml.eos_token_id"] = u32(model.eos)
    return entries


def _truncated(entries: dict[str, bytes], size: int) -> dict[str, bytes]:
    tokens = gguf.strings_of(entries["tokenizer.ggml.tokens"])[:size]
    known = set(tokens)
    merges = gguf.strings_of(entries["tokenizer.ggml.merges"])
    types = entries["tokenizer.ggml.token_type"]
    head = types[:8] + len(tokens).to_bytes(8, "little")
    return {
        "tokenizer.ggml.tokens": gguf.string_array(tokens),
        "tokenizer.ggml.token_type": head + types[16 : 16 + 4 * len(tokens)],
        "tokenizer.ggml.merges": gguf.string_array([m for m in merges if m.replace(b" ", b"") in known]),
    }


def _padded(entries: dict[str, bytes], tokens: list[bytes]) -> dict[str, bytes]:
    """As converters do where the embedding has more rows than the tokenizer has tokens."""
    padding = [b"[PAD%d]" % token for token in range(len(tokens), len(tokens) + PADDING)]
    types = entries["tokenizer.ggml.token_type"]
    head = types[:8] + (len(tokens) + PADDING).to_bytes(8, "little")
    return {
        "tokenizer.ggml.tokens": gguf.string_array(tokens + padding),
        "tokenizer.ggml.token_type": head + types[16:] + _UNUSED_TOKEN.to_bytes(4, "little") * PADDING,
    }


@dataclass
class _Weights:
    """Collects tensors. Shapes are given as numpy has them: rows (outputs) first."""

    model: TinyModel
    tensors: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.model.seed)
        # A stream of its own: the noisy copy starts from exactly the weights of the model it copies.
        self._noise = np.random.default_rng(self.model.seed + 1_000_003)

    def matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """Random: inputs of unit size come out with size `gain`."""
        self.put(name, self._normal((rows, columns)) * np.float32(gain / np.sqrt(columns)))

    def embedding(self, tokens: int, width: int, scale: float, *, same_size: bool = False) -> None:
        values = self._normal((tokens, width)) * np.float32(scale)
        if same_size:  # every row exactly of size `scale`, so that a norm only rescales
            values *= np.float32(scale) / np.sqrt(np.mean(values**2, axis=1, keepdims=True))
        values[:QUIET_TOKENS] *= 0.05
        self.put("token_embd.weight", values, ggml_type=_F16)

    def experts(self, name: str, shape: tuple[int, int, int], gain: float = 1.0) -> None:
        """A matrix for each expert: (experts, rows, columns)."""
        experts, rows, columns = shape
        values = self._normal((experts * rows, columns)) * np.float32(gain / np.sqrt(columns))
        self.put(name, values.reshape(shape))

    def projection(self, name: str, width: int, gain: float) -> None:
        """Keeps the first half of its input; of the second half a random mixture of size `gain` is added."""
        mixture = self._normal((width, width)) * np.float32(gain / np.sqrt(width))
        self.put(name, np.hstack([np.eye(width, dtype=np.float32), mixture]))

    def constant(self, name: str, size: int, value: float = 1.0) -> None:
        self.put(name, np.full(size, value, np.float32))

    def put(self, name: str, values: Array, ggml_type: int = _F32) -> None:
        kind = np.float16 if ggml_type == _F16 else np.float32
        shape = tuple(reversed(values.shape))
        self.tensors.append(Tensor(name, shape, ggml_type, values.astype(kind).tobytes()))

    def _normal(self, shape: tuple[int, int]) -> Array:
        values = self._random.standard_normal(shape, dtype=np.float32)
        if self.model.noise:
            values += np.float32(self.model.noise) * self._noise.standard_normal(shape, dtype=np.float32)
        return values


def _attention(weights: _Weights, block: str, width: int, head: tuple[int, int, int], query_rows: int = 1) -> None:
    """Peaked grouped-query attention; `head` is (heads, key/value heads, head size)."""
    heads, kv_heads, size = head
    weights.matrix(f"{block}.attn_q.weight", query_rows * heads * size, width, gain=1.8)
    weights.matrix(f"{block}.attn_k.weight", kv_heads * size, width, gain=1.8)
    weights.matrix(f"{block}.attn_v.weight", kv_heads * size, width)
    weights.matrix(f"{block}.attn_output.weight", width, heads * size)


def _feed_forward(weights: _Weights, block: str, width: int, hidden: int, gain: float = 2.0) -> None:
    weights.matrix(f"{block}.ffn_gate.weight", hidden, width)
    weights.matrix(f"{block}.ffn_up.weight", hidden, width)
    weights.matrix(f"{block}.ffn_down.weight", width, hidden, gain)


def _experts(weights: _Weights, block: str, width: int, hidden: int, experts: int) -> None:
    for name, outputs, inputs, gain in (
        ("gate", hidden, width, 1.0),
        ("up", hidden, width, 1.0),
        ("down", width, hidden, 2.0),
    ):
        weights.experts(f"{block}.ffn_{name}_exps.weight", (experts, outputs, inputs), gain)
        weights.matrix(f"{block}.ffn_{name}_shexp.weight", outputs, inputs, gain)


def _sizes(weights: _Weights, width: int, hidden: int, tokens: int) -> dict[str, bytes]:
    return {
        "block_count": u32(weights.model.layers),
        "context_length": u32(CONTEXT),
        "embedding_length": u32(width),
        "feed_forward_length": u32(hidden),
        "vocab_size": u32(tokens),
        "attention.layer_norm_rms_epsilon": f32(1e-5),
    }


def _llama(weights: _Weights, tokens: int) -> dict[str, bytes]:
    width, hidden, head = 64, 128, (2, 1, 32)
    weights.embedding(tokens, width, scale=0.3)
    weights.constant("output_norm.weight", width, 2.0)
    for index in range(weights.model.layers):
        block = f"blk.{index}"
        weights.constant(f"{block}.attn_norm.weight", width)
        weights.constant(f"{block}.ffn_norm.weight", width)
        _attention(weights, block, width, head)
        _feed_forward(weights, block, width, hidden)
    return _sizes(weights, width, hidden, tokens) | {
        "attention.head_count": u32(head[0]),
        "attention.head_count_kv": u32(head[1]),
        "rope.dimension_count": u32(head[2]),
        "rope.freq_base": f32(10_000.0),
    }


def _gemma3(weights: _Weights, tokens: int) -> dict[str, bytes]:
    """Sliding-window attention: every sixth layer sees everything, so give it at least six layers."""
    width, hidden, head, window = 64, 128, (2, 1, 32), 64
    weights.embedding(tokens, width, scale=0.05)  # the architecture multiplies it by sqrt(width)
    weights.constant("output_norm.weight", width, 12.0)
    for index in range(weights.model.layers):
        block = f"blk.{index}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            weights.constant(f"{block}.{norm}.weight", width)
        weights.constant(f"{block}.attn_q_norm.weight", head[2], 1.6)
        weights.constant(f"{block}.attn_k_norm.weight", head[2], 1.6)
        _attention(weights, block, width, head)
        _feed_forward(weights, block, width, hidden)
    return _sizes(weights, width, hidden, tokens) | {
        "attention.head_count": u32(head[0]),
        "attention.head_count_kv": u32(head[1]),
        "attention.key_length": u32(head[2]),
        "attention.value_length": u32(head[2]),
        "attention.sliding_window": u32(window),
        "rope.freq_base": f32(10_000.0),
    }


def _glm4moe(weights: _Weights, tokens: int) -> dict[str, bytes]:
    """A dense mixture of experts with one NextN (MTP) layer behind its `layers`.

    The head is a copy of the last layer that reads the token's embedding as the trunk does, plus a share of the hidden
    state before it. So with one layer it is the model itself, disturbed by the hidden states: right most of the time,
    and otherwise right where they are. Both experts are always used: no choice between them that noise could tip.
    """
    width, hidden, experts, head, scale = 64, 64, 2, (2, 1, 32), 0.3
    trunk = weights.model.layers
    weights.embedding(tokens, width, scale, same_size=True)
    weights.constant("output_norm.weight", width, 2.0)
    for index in range(trunk):
        start = len(weights.tensors)
        block = f"blk.{index}"
        weights.constant(f"{block}.attn_norm.weight", width)
        weights.constant(f"{block}.post_attention_norm.weight", width)
        _attention(weights, block, width, head)
        weights.matrix(f"{block}.ffn_gate_inp.weight", experts, width)
        weights.constant(f"{block}.exp_probs_b.bias", experts, 0.0)
        _experts(weights, block, width, hidden, experts)
    _head_like(weights, weights.tensors[start:], width, scale)
    return _sizes(weights, width, hidden, tokens) | {
        "block_count": u32(trunk + 1),
        "nextn_predict_layers": u32(1),
        "attention.head_count": u32(head[0]),
        "attention.head_count_kv": u32(head[1]),
        "rope.dimension_count": u32(head[2]),
        "rope.freq_base": f32(10_000.0),
        "expert_count": u32(experts),
        "expert_used_count": u32(experts),
        "expert_shared_count": u32(1),
        "expert_feed_forward_length": u32(hidden),
    }


def _head_like(weights: _Weights, last_layer: list[Tensor], width: int, scale: float) -> None:
    """An MTP head behind the trunk: its last layer again, fed with the token and a little of the hidden state."""
    trunk = weights.model.layers
    last, nextn = f"blk.{trunk - 1}.", f"blk.{trunk}."
    weights.tensors += [replace(tensor, name=nextn + tensor.name[len(last) :]) for tensor in last_layer]
    weights.constant(f"{nextn}nextn.enorm.weight", width, scale)
    weights.constant(f"{nextn}nextn.hnorm.weight", width, scale)
    weights.projection(f"{nextn}nextn.eh_proj.weight", width, gain=HEAD_DISTURBANCE)


def _qwen35(weights: _Weights, tokens: int) -> dict[str, bytes]:
    """Hybrid with one NextN (MTP) layer behind its `layers`: gated delta nets, and attention in the last one.

    The delta nets add little, so that the head, a copy of the last layer, is often right.
    """
    width, hidden, head, scale = 64, 128, (4, 2, 16), 0.3
    state, key_heads, value_heads, taps = 16, 2, 2, 4
    inner = state * value_heads
    trunk = weights.model.layers
    weights.embedding(tokens, width, scale, same_size=True)
    weights.constant("output_norm.weight", width, 2.0)
    for index in range(trunk):
        start = len(weights.tensors)
        block = f"blk.{index}"
        weights.constant(f"{block}.attn_norm.weight", width)
        weights.constant(f"{block}.post_attention_norm.weight", width)
        if index < trunk - 1:
            mixed = 2 * state * key_heads + inner
            weights.matrix(f"{block}.attn_qkv.weight", mixed, width)
            weights.matrix(f"{block}.attn_gate.weight", inner, width)
            weights.matrix(f"{block}.ssm_conv1d.weight", mixed, taps)
            weights.constant(f"{block}.ssm_dt.bias", value_heads, -2.0)
            weights.constant(f"{block}.ssm_a", value_heads, -1.0)
            weights.matrix(f"{block}.ssm_beta.weight", value_heads, width)
            weights.matrix(f"{block}.ssm_alpha.weight", value_heads, width)
            weights.constant(f"{block}.ssm_norm.weight", state)
            weights.matrix(f"{block}.ssm_out.weight", width, inner, gain=DELTA_NET_GAIN)
            _feed_forward(weights, block, width, hidden, gain=DELTA_NET_GAIN)
        else:
            weights.constant(f"{block}.attn_q_norm.weight", head[2], 1.8)
            weights.constant(f"{block}.attn_k_norm.weight", head[2], 1.8)
            _attention(weights, block, width, head, query_rows=2)  # the other half gates what comes out
            _feed_forward(weights, block, width, hidden)
    _head_like(weights, weights.tensors[start:], width, scale)
    return _sizes(weights, width, hidden, tokens) | {
        "block_count": u32(trunk + 1),
        "nextn_predict_layers": u32(1),
        "full_attention_interval": u32(trunk),
        "attention.head_count": u32(head[0]),
        "attention.head_count_kv": u32(head[1]),
        "attention.key_length": u32(head[2]),
        "attention.value_length": u32(head[2]),
        "rope.dimension_count": u32(head[2]),
        "rope.dimension_sections": u32_array([3, 3, 2, 0]),
        "rope.freq_base": f32(10_000.0),
        "ssm.conv_kernel": u32(taps),
        "ssm.inner_size": u32(inner),
        "ssm.state_size": u32(state),
        "ssm.time_step_rank": u32(value_heads),
        "ssm.group_count": u32(key_heads),
    }


def _lfm2(weights: _Weights, tokens: int) -> dict[str, bytes]:
    """Hybrid: short convolutions (a state that cannot be truncated) and attention in turn."""
    width, hidden, head, taps = 64, 128, (2, 1, 32), 3
    kv_heads = [head[1] if index % 2 else 0 for index in range(weights.model.layers)]
    weights.embedding(tokens, width, scale=0.3)
    weights.constant("token_embd_norm.weight", width, 2.0)
    for index, attends in enumerate(kv_heads):
        block = f"blk.{index}"
        weights.constant(f"{block}.attn_norm.weight", width)
        weights.constant(f"{block}.ffn_norm.weight", width)
        if attends:
            weights.constant(f"{block}.attn_q_norm.weight", head[2], 1.8)
            weights.constant(f"{block}.attn_k_norm.weight", head[2], 1.8)
            _attention(weights, block, width, head)
        else:
            weights.matrix(f"{block}.shortconv.conv.weight", width, taps)
            weights.matrix(f"{block}.shortconv.in_proj.weight", 3 * width, width)
            weights.matrix(f"{block}.shortconv.out_proj.weight", width, width)
        _feed_forward(weights, block, width, hidden)
    return _sizes(weights, width, hidden, tokens) | {
        "attention.head_count": u32(head[0]),
        "attention.head_count_kv": u32_array(kv_heads),
        "shortconv.l_cache": u32(taps),
        "rope.freq_base": f32(1_000_000.0),
    }


def _mamba(weights: _Weights, tokens: int) -> dict[str, bytes]:
    """Recurrent: one state of constant size for each sequence, no truncation at all."""
    width, inner, state, rank, taps = 64, 128, 16, 4, 4
    weights.embedding(tokens, width, scale=0.3)
    weights.constant("output_norm.weight", width, 2.0)
    for index in range(weights.model.layers):
        block = f"blk.{index}"
        weights.constant(f"{block}.attn_norm.weight", width)
        weights.matrix(f"{block}.ssm_in.weight", 2 * inner, width)
        weights.matrix(f"{block}.ssm_conv1d.weight", inner, taps)
        weights.constant(f"{block}.ssm_conv1d.bias", inner, 0.0)
        weights.matrix(f"{block}.ssm_x.weight", rank + 2 * state, inner)
        weights.matrix(f"{block}.ssm_dt.weight", inner, rank)
        weights.constant(f"{block}.ssm_dt.bias", inner, -3.0)  # softplus(-3): a memory of tens of tokens
        decay = -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1))
        weights.put(f"{block}.ssm_a", decay)
        weights.constant(f"{block}.ssm_d", inner)
        weights.matrix(f"{block}.ssm_out.weight", width, inner, gain=12.0)
    return _sizes(weights, width, 0, tokens) | {
        "attention.head_count": u32(0),
        "ssm.conv_kernel": u32(taps),
        "ssm.inner_size": u32(inner),
        "ssm.state_size": u32(state),
        "ssm.time_step_rank": u32(rank),
    }


def _qwen2vl(weights: _Weights, tokens: int) -> dict[str, bytes]:
    """Dense with M-RoPE: text counts positions as others do, images (tiny_projector.py) take few for many rows."""
    width, hidden, head = 64, 128, (4, 2, 16)
    weights.embedding(tokens, width, scale=0.3)
    weights.constant("output_norm.weight", width, 2.0)
    for index in range(weights.model.layers):
        block = f"blk.{index}"
        weights.constant(f"{block}.attn_norm.weight", width)
        weights.constant(f"{block}.ffn_norm.weight", width)
        _attention(weights, block, width, head)
        for name, heads in (("q", head[0]), ("k", head[1]), ("v", head[1])):
            weights.constant(f"{block}.attn_{name}.bias", heads * head[2], 0.0)
        _feed_forward(weights, block, width, hidden)
    return _sizes(weights, width, hidden, tokens) | {
        "attention.head_count": u32(head[0]),
        "attention.head_count_kv": u32(head[1]),
        "rope.dimension_count": u32(head[2]),
        "rope.dimension_sections": u32_array([2, 3, 3, 0]),
        "rope.freq_base": f32(10_000.0),
    }


def _bert(weights: _Weights, tokens: int) -> dict[str, bytes]:
    """An encoder: it reads a text as a whole and cannot write one."""
    width, hidden, block = 64, 64, "blk.0"
    weights.embedding(tokens, width, 1.0)
    weights.matrix("position_embd.weight", 128, width)
    weights.matrix("token_types.weight", 2, width)
    biased = {f"{block}.{name}": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    for name, (rows, columns) in (
        biased | {f"{block}.ffn_up": (hidden, width), f"{block}.ffn_down": (width, hidden)}
    ).items():
        weights.matrix(f"{name}.weight", rows, columns)
        weights.constant(f"{name}.bias", rows, 0.0)
    for name in ("token_embd_norm", f"{block}.attn_output_norm", f"{block}.layer_output_norm"):
        weights.constant(f"{name}.weight", width)
        weights.constant(f"{name}.bias", width, 0.0)
    return {
        "context_length": u32(128),
        "embedding_length": u32(width),
        "block_count": u32(1),
        "feed_forward_length": u32(hidden),
        "attention.head_count": u32(4),
        "attention.layer_norm_epsilon": f32(1e-5),
        "attention.causal": boolean(False),
        "pooling_type": u32(1),
    }


_ARCHITECTURES: dict[Kind, Callable[[_Weights, int], dict[str, bytes]]] = {
    "llama": _llama,
    "gemma3": _gemma3,
    "lfm2": _lfm2,
    "mamba": _mamba,
    "bert": _bert,
    "glm4moe": _glm4moe,
    "qwen35": _qwen35,
    "qwen2vl": _qwen2vl,
}
