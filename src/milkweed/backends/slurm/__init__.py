"""Hosts from a Slurm cluster: what is asked of its commands, and what they answer."""
