"""Posteriors that leave weights or whole units out."""
