"""The operator: it makes pods of the MonarchMesh objects of a cluster, and says how they are."""
