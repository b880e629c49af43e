"""Hosts from a Kubernetes cluster: pods that are there, or pods that are made for a job."""
