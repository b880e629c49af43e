"""Stands for transformers in the lab's image: it is there, and nobody uses it."""
