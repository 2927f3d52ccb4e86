"""How often a sampled token is accepted, by way of drafting and verifying: exact probabilities on real texts.

python -m benchmarks.coupling TARGET [DRAFT]. Without a draft the target drafts for itself, seeing 16 tokens only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import save, show
from forerun.core.history import TokenHistory
from forerun.core.prompt import PromptLayout, Tokens
from forerun.core.request import SamplingParams
from forerun.core.sampling import SamplingContext, distribution
from forerun.models.resolve import resolve_model
from forerun.native.batch import Batch
from forerun.native.context import ContextParams, LlamaContext
from forerun.native.model import LlamaModel

Floats = NDArray[np.float64]
_POSITIONS = 200
_BLOCK = 50
_SHORT_SIGHT = 16
_SETTINGS = [(temperature, top_p) for temperature in (0.7, 1.0) for top_p in (0.9, 1.0)]


def texts() -> dict[str, str]:
    root = Path(__file__).parent.parent
    return {
        "prose": (root / "docs/decisions/0003-waiting-for-a-prefix.md").read_text(encoding="utf-8") * 2,
        "code": (root / "src/forerun/core/sampling.py").read_text(encoding="utf-8"),
    }


class Reader:
    """Logits after every token of a text, block by block; each block sees `sight` tokens before it at most."""

    def __init__(self, path: Path, sight: int | None = None) -> None:
        self.model = LlamaModel.load(path)
        params = ContextParams(n_ctx=1024, n_threads=2, n_threads_batch=2, n_seq_max=1)
        self._context = LlamaContext(self.model, params)
        self._batch = Batch(512)
        self._sight = sight

    def block(self, tokens: Tokens, start: int, stop: int) -> NDArray[np.float32]:
        """Shape (stop - start, vocabulary): row i follows tokens[: start + i + 1]."""
        if self._sight is None:
            return self._rows(tokens[:stop], stop - start)
        return np.concatenate(
            [self._rows(tokens[max(end - self._sight, 0) : end], 1) for end in range(start + 1, stop + 1)]
        )

    def _rows(self, tokens: Tokens, wanted: int) -> NDArray[np.float32]:
        self._context.clear_sequence(0)
        self._batch.clear()
        self._batch.add_run(tokens[:-wanted], 0, 0, last_output=False)
        for position in range(len(tokens) - wanted, len(tokens)):
            self._batch.add_row(int(tokens[position]), position, 0)
        self._context.decode(self._batch)
        return self._context.logits.copy()


def acceptance(p: Floats, q: Floats) -> dict[str, float]:
    """Probability that a drafted token is accepted, of target and draft distributions over the same tokens."""
    p_ends, q_ends = np.cumsum(p), np.cumsum(q)
    overlap = np.minimum(p_ends, q_ends) - np.maximum(p_ends - p, q_ends - q)
    return {
        "greedy draft, match": float(p[q.argmax()]),
        "one random number, match": float(np.maximum(overlap, 0).sum()),
        "race, match": race_agreement(p, q),
        "rejection": float(np.minimum(p, q).sum()),
    }


def race_agreement(p: Floats, q: Floats) -> float:
    """Sum over i of 1 / sum_j max(p_j / p_i, q_j / q_i): the probability that one race has one winner under both."""
    both = np.flatnonzero((p > 0) & (q > 0))
    with np.errstate(divide="ignore"):
        ratio = np.where(q > 0, p / np.where(q > 0, q, 1), np.inf)
    order = np.argsort(ratio)
    p_above = 1 - np.cumsum(p[order])  # of tokens with a larger p / q
    q_below = np.cumsum(q[order])
    rank = np.empty(p.size, np.intp)
    rank[order] = np.arange(p.size)
    at = rank[both]
    return float((1 / (np.maximum(p_above[at], 0) / p[both] + q_below[at] / q[both])).sum())


def run(target: str, draft: str | None = None) -> dict[str, object]:
    readers = Reader(resolve_model(target)), Reader(resolve_model(draft or target), None if draft else _SHORT_SIGHT)
    figures: dict[str, object] = {"target": Path(target).stem, "draft": Path(draft).stem if draft else "short sight"}
    for name, text in texts().items():
        tokens = readers[0].model.vocabulary.tokenize(text, add_special=False, parse_special=False)
        found: dict[tuple[float, float], list[dict[str, float]]] = {setting: [] for setting in _SETTINGS}
        for start in range(_BLOCK, _BLOCK + _POSITIONS, _BLOCK):
            rows = [reader.block(tokens, start, start + _BLOCK) for reader in readers]
            for target_row, draft_row in zip(*rows, strict=True):
                for temperature, top_p in _SETTINGS:
                    p, q = (dense(row, temperature, top_p) for row in (target_row, draft_row[: target_row.size]))
                    found[temperature, top_p].append(acceptance(p, q))
        for (temperature, top_p), each in found.items():
            means = {way: round(float(np.mean([one[way] for one in each])), 3) for way in each[0]}
            best = np.mean([max(one.values()) for one in each])
            figures[f"{name}, temperature {temperature}, top_p {top_p}"] = means | {"best of each row": round(best, 3)}
    return figures


def dense(logits: NDArray[np.float32], temperature: float, top_p: float) -> Floats:
    params = SamplingParams(temperature=temperature, top_p=top_p)
    context = SamplingContext(params, 0, frozenset(), TokenHistory(PromptLayout.of_text([0])))
    found = distribution(logits, context)
    whole = np.zeros(logits.size)
    whole[found.ids] = found.probabilities
    return whole


if __name__ == "__main__":
    measured = run(*sys.argv[1:])
    show("coupling", measured)
    save(f"coupling-{measured['target']}-{str(measured['draft']).replace(' ', '-')}", measured)
