"""HTTP servers of a program in a cluster: the hardened server, health checks and probes."""
