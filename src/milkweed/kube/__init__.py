"""Talking to a Kubernetes API server: standard library only, so that it costs nothing where it is not used."""
