"""The Manager runtime: torch only, knows nothing of Gymnasium nor of an engine."""
