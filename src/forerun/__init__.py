"""Forerun: an inference engine for llama.cpp models that never computes a prompt prefix twice and drafts ahead losslessly."""
