"""The program milkweed starts on every machine: standard library and engine only.

One keeper process per machine and job is warm: it has imported everything the engine needs except the
engine itself. From it are forked the engine server of each host and, later, each proc, so that none of
them pays for starting an interpreter. The keeper is the parent of all of them, holds the lease, keeps
their logs and takes orders on a socket only the job's owner reaches.
"""
