"""Histories of requests, pods and writes, and the rules that they must keep; see `check`."""
