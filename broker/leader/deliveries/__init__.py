"""What only a leader does for groups that are handed single messages (ADR 57)."""
