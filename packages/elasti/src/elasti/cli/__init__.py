"""The `elasti` command: one file a command, rendering apart from doing, nothing loaded unasked."""
