"""Replicas and the shared prefix tier: hits, times to the first token, and what faults cost."""
