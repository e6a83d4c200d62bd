"""What users see: conditions, events and status."""
