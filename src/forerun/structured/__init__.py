"""Answers that must look like something: JSON schemas, regular expressions, grammars. Only this imports llguidance."""
