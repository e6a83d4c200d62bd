"""Enrolment: ElastiServices for labelled Services."""
