"""Several networks, or several places on one training path."""
