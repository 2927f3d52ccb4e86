"""The HTTP front end: any OpenAI or Anthropic client, unchanged."""
