"""`/v1/responses`: OpenAI's Responses API, without anything stored: a request in, an answer as typed events out."""
