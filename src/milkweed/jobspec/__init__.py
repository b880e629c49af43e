"""Jobspecs: steps described once, run on any workload manager."""
