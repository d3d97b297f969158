"""Published tables and figures, one file each: expected values, seed and cost beside the code that
measures them again.

``credo_reproduce.catalogue`` holds them all; ``command`` is what ``credo reproduce`` runs, found by
its entry point.
"""
