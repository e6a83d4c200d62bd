"""The dashboard: what a browser shows of ElastiServices, and what a user can ask for there."""
