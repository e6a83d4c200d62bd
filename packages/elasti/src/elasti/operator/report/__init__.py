"""The reports that users see: conditions, events and status."""
