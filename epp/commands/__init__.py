"""Commands that look at a configuration or a running picker, and serve nothing."""
