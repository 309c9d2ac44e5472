"""What a leader does about messages that failed: copies of them, when those are due, and dead
letters (ADR 58)."""
