"""Hosts from a Flux instance: what is asked of its command, and what it answers."""
