"""Log, metrics and traces of a service."""
