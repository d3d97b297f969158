"""Dropout and other noise in the forward pass, read as a posterior."""
