"""Real Qwen2 weights under M-RoPE: the same file, called qwen2vl. What it says of a picture is noise, and costs what it
costs."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

_FROM, _TO = "qwen2", "qwen2vl"


def relabelled(path: Path, folder: Path) -> Path:
    """The file under its other name, written to `folder` unless it is there."""
    target = folder / f"{path.stem}-as-qwen2vl.gguf"
    if not target.exists():
        partial = target.with_suffix(".partial")
        _write(GGUFReader(path), partial)
        partial.rename(target)
    return target


def width_of(path: Path) -> int:
    """The width of a Qwen2 model's embeddings: what a projector for it gives."""
    return int(GGUFReader(path).fields[f"{_FROM}.embedding_length"].contents())


def _write(reader: GGUFReader, path: Path) -> None:
    writer = GGUFWriter(path, _TO)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        key = name.replace(f"{_FROM}.", f"{_TO}.", 1) if name.startswith(f"{_FROM}.") else name
        writer.add_key_value(key, field.contents(), kind, sub_type=inner)
    writer.add_array(f"{_TO}.rope.dimension_sections", _sections(reader))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _sections(reader: GGUFReader) -> list[int]:
    """Halves of a head's rotated numbers that stand for time, height and width: a quarter, and the rest shared."""
    width, heads = (
        int(reader.fields[f"{_FROM}.{name}"].contents()) for name in ("embedding_length", "attention.head_count")
    )
    half = width // heads // 2
    time = half // 4
    height = (half - time) // 2
    return [time, height, half - time - height, 0]
