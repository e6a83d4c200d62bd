"""The hand-over of a Service's traffic between its pods and the resolver."""
