"""What the picker says of itself: logs, metrics, and the pages that show them."""
