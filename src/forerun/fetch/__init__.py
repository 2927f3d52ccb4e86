"""Fetching models: from Hugging Face's hub, from any HTTP server, out of Python packages."""
