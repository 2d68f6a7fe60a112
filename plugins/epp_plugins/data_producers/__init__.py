"""Data producers: facts about a request, computed before the choice."""
