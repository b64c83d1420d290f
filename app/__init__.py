"""Batchyard: an OpenAI-compatible Batch service in front of one shared vLLM engine."""

import importlib.metadata


def version() -> str:
    """Of the installed distribution; `unknown` in a checkout that was never installed."""
    try:
        return importlib.metadata.version("batchyard")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
