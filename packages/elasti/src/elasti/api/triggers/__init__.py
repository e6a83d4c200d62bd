"""The types of triggers: what users write for each, and what the operator needs to read it."""
