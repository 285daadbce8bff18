"""Replicas of a model on Ray Serve: the service stays one process, and asks the replica that holds a prompt's KV."""
