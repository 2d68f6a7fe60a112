"""Profile handlers: which profiles run for a request."""
