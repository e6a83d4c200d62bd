"""The kubelet of the dev cluster: runs the pods of one node as local processes.

It is a client like any other, so it also serves a node of a real API server. Start at `kubelet`.
"""
