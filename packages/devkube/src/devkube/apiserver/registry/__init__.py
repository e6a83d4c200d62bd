"""The verbs of any resource: served resources, reads, watches, writes, subresources."""
