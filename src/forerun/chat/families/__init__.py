"""The ways in which families of models write reasoning and tool calls, one a module."""
