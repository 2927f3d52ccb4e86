"""Pictures and sounds that callers send: read within bounds, decoded in a process that may die of it, handed on as
pixels and samples."""
