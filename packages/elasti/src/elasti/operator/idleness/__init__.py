"""When a target may sleep and when it must wake: decisions, schedules, triggers."""
