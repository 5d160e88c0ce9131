"""Methods that evict."""
