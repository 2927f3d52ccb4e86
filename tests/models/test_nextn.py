"""Whether a head can draft is judged from the header, and the reason names what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.models.gguf_header import GgufHeader
from forerun.models.nextn import has_mtp, nextn_layers, why_no_mtp
from forerun.models.validate import read_model_header

Change = Callable[[GgufHeader], GgufHeader]


def without(part: str) -> Change:
    return lambda header: replace(header, tensors=tuple(tensor for tensor in header.tensors if part not in tensor.name))


def saying(key: str, value: str | int) -> Change:
    return lambda header: replace(header, metadata={**header.metadata, key: value})


def of_architecture(name: str) -> Change:
    def changed(header: GgufHeader) -> GgufHeader:
        renamed = {key.replace("glm4moe.", f"{name}."): value for key, value in header.metadata.items()}
        return replace(header, metadata=renamed | {"general.architecture": name})

    return changed


def test_a_head_that_is_all_there_can_draft(tiny_mtp_path: Path) -> None:
    header = read_model_header(tiny_mtp_path)
    assert (nextn_layers(header), has_mtp(header), why_no_mtp(header)) == (1, True, None)


def test_a_model_without_a_head_says_so(tiny_dense_path: Path) -> None:
    header = read_model_header(tiny_dense_path)
    assert (nextn_layers(header), why_no_mtp(header)) == (0, "the file has no NextN layers")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without("nextn.eh_proj"), "lacks the head's tensor blk.1.nextn.eh_proj.weight"),
        (without("blk.1.ffn_gate_inp"), "lacks the head's tensor blk.1.ffn_gate_inp.weight"),
        (saying("glm4moe.nextn_predict_layers", 3), "has 3 NextN layers; models with exactly one"),
        (saying("glm4moe.nextn_predict_layers", "1"), "has no NextN layers"),
        (of_architecture("exaone4"), "architecture exaone4 are not supported yet"),
    ],
    ids=["no projection", "no router", "three layers", "no number", "no graph"],
)
def test_a_head_that_would_end_the_process_or_draft_nonsense_is_found_out(
    tiny_mtp_path: Path, change: Change, reason: str
) -> None:
    assert reason in (why_no_mtp(change(read_model_header(tiny_mtp_path))) or "")
