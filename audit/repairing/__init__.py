"""A log that has rotted, put right while no node runs on it."""
