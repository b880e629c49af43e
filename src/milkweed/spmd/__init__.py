"""Programs in the style of torchrun: one process per rank, started on all hosts of a mesh."""
