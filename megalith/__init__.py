"""Megalith trains large Transformer language models on any number of processors."""

__version__ = "0.1.0"
