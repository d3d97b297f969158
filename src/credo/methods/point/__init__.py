"""Point estimates: the network as it would be trained without credo."""
