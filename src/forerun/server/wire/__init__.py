"""What comes over the wire, as types: the same that OpenAPI documents and docs/openai-compat.md lists."""
