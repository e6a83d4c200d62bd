"""What the verbs do to any resource: served resources, reads, watches, writes, subresources."""
