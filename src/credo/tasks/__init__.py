"""What to do with a fitted posterior: distil it into one network, compare two of them, or measure a
bottleneck.
"""

from credo.tasks import distill, fidelity, information

__all__ = ["distill", "fidelity", "information"]
