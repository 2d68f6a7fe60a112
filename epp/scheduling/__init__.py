"""The choice: profiles of filters, scorers and a picker over a snapshot of candidates."""
