"""Whether a pod answers: which probe to send, and what its answer means."""
