"""What only these methods share; no method is imported here."""
