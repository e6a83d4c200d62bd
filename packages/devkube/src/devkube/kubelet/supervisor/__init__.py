"""The process between a kubelet and its containers. Standard library only: it starts in no time."""
